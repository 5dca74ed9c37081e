"use strict";
// Makes the drawings answer. Reads what the page already shows, writes attributes and plain text; without it
// the page is complete.
(() => {
  const get = (id) => document.getElementById(id);
  const inUnits = (bytes) => {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (bytes > size) return (bytes / size).toFixed(2) + " " + unit;
    }
    return bytes + " bytes";
  };

  const plot = get("time");
  if (plot) {
    const numbers = plot.dataset.columns.split(" ").map(Number);
    const columns = numbers.length / 3;
    const at = get("time-at"), said = get("time-said");
    plot.addEventListener("pointermove", (event) => {
      const area = plot.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - area.left) / area.width, 0), 1);
      const place = Math.min(Math.floor(share * columns), columns - 1);
      const [entry, allocated, reserved] = numbers.slice(place * 3, place * 3 + 3);
      const x = share * 100 + "%";
      at.setAttribute("x1", x);
      at.setAttribute("x2", x);
      at.setAttribute("visibility", "visible");
      said.textContent = "entry " + entry.toLocaleString("en") + ": " + inUnits(allocated) +
        " allocated, " + inUnits(reserved) + " reserved";
    });
    plot.addEventListener("pointerleave", () => {
      at.setAttribute("visibility", "hidden");
      said.textContent = "";
    });
  }

  // One graph: its boxes and its tools, whose names begin with its own.
  const answer = (flame, name) => {
    const find = get(name + "-find"), all = get(name + "-all"), said = get(name + "-said");
    const frames = Array.from(flame.querySelectorAll(".frame"), (node) => ({
      node,
      at: parseFloat(node.getAttribute("x")),
      wide: parseFloat(node.getAttribute("width")),
      down: Number(node.getAttribute("y")),
      title: node.querySelector("title").textContent,
    }));
    const of = new Map(frames.map((frame) => [frame.node, frame]));
    const root = frames[0];
    // Places are rounded to a millionth of the whole.
    const near = 0.0002;
    const isInside = (inner, outer) =>
      inner.at >= outer.at - near && inner.at + inner.wide <= outer.at + outer.wide + near;
    let zoomed = root, current = root;

    const draw = () => {
      const dots = flame.getBoundingClientRect().width;
      for (const frame of frames) {
        const outer = frame.down < zoomed.down && isInside(zoomed, frame);
        const inner = frame.down >= zoomed.down && isInside(frame, zoomed);
        const wide = outer ? 100 : frame.wide / zoomed.wide * 100;
        const at = outer ? 0 : (frame.at - zoomed.at) / zoomed.wide * 100;
        frame.node.setAttribute("x", at + "%");
        frame.node.setAttribute("width", wide + "%");
        frame.node.setAttribute("visibility", outer || inner ? "visible" : "hidden");
        frame.node.classList.toggle("outer", outer);
        frame.node.classList.toggle("narrow", wide / 100 * dots < 34);
      }
      all.disabled = zoomed === root;
    };
    const zoom = (frame) => {
      zoomed = frame;
      draw();
      focus(frame);
    };
    const focus = (frame) => {
      current.node.setAttribute("tabindex", "-1");
      current = frame;
      current.node.setAttribute("tabindex", "0");
      current.node.focus({ preventScroll: true });
    };
    const search = () => {
      const word = find.value.toLowerCase();
      let sum = 0, end = -1, hits = 0;
      const inOrder = [...frames].sort((a, b) => a.at - b.at || a.down - b.down);
      for (const frame of inOrder) {
        const hit = word !== "" && frame !== root && frame.title.toLowerCase().includes(word);
        frame.node.classList.toggle("hit", hit);
        hits += hit;
        if (hit && frame.at >= end - near) {
          sum += frame.wide;
          end = frame.at + frame.wide;
        }
      }
      said.textContent = word === "" ? "" : hits + " boxes, " + sum.toFixed(1) + " % of the bytes";
    };

    flame.addEventListener("click", (event) => {
      const frame = of.get(event.target.closest(".frame"));
      if (frame) zoom(frame);
    });
    flame.addEventListener("keydown", (event) => {
      const shown = (frame) => frame.node.getAttribute("visibility") !== "hidden";
      const nearest = (row, beyond) => frames.filter((frame) => shown(frame) && frame.down === row && beyond(frame));
      const row = flame.querySelector(".frame").height.baseVal.value + 1;
      let next;
      switch (event.key) {
        case "Enter": case " ": zoom(current); break;
        case "Escape": zoom(root); break;
        case "ArrowUp": next = nearest(current.down - row, (it) => isInside(current, it))[0]; break;
        case "ArrowDown": next = nearest(current.down + row, (it) => isInside(it, current))[0]; break;
        case "ArrowLeft": next = nearest(current.down, (it) => it.at < current.at).sort((a, b) => b.at - a.at)[0]; break;
        case "ArrowRight": next = nearest(current.down, (it) => it.at > current.at).sort((a, b) => a.at - b.at)[0]; break;
        default: return;
      }
      event.preventDefault();
      if (next) focus(next);
    });
    const tell = (event) => {
      const frame = of.get(event.target.closest(".frame"));
      if (frame) said.textContent = frame.title.replace("\n", ": ");
    };
    flame.addEventListener("pointerover", tell);
    flame.addEventListener("focusin", tell);
    flame.addEventListener("pointerleave", search);
    find.addEventListener("input", search);
    all.addEventListener("click", () => zoom(root));
    addEventListener("resize", draw);
    get(name + "-tools").hidden = false;
    draw();
  };
  for (const name of ["modules", "flame"]) {
    const flame = get(name);
    if (flame) answer(flame, name);
  }
})();
