"""Work spread over the Ray cluster that is there: what each task needs is given with it, and comes back as it is done."""

from __future__ import annotations

import collections
import contextlib
import functools
import socket
import sys
import time

from . import _tonnage
from ._errors import Error, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from typing import Any

#: How often something is given out again whose worker is lost; whatever it is may be what kills workers. Ray itself is to do
#: nothing again: it would for ever where a node runs out of memory, and count that as no retry.
_RETRIES = 3

#: Tasks that are there at least, and seconds until a cluster is asked for its size again.
_FEWEST = 64
_ASKED = 5.0

#: Seconds in which nothing is done until a cluster is asked whether it can do anything.
_SILENT = 10.0

#: Seconds in which a cluster answers that it is there.
_ANSWERS = 10.0

#: Seconds that tasks have to end by themselves, where they are asked to.
_ENDING = 30.0


class Lost(str):
    """Why there is no result: the workers that were at it died."""

    __slots__ = ()


class RefusedError(Exception):
    """A worker cannot do the work, and its words say why."""


def check_version(version: str) -> None:
    """Refuses, on a worker, the work of a program of another version."""
    if _tonnage.VERSION != version:
        raise RefusedError(
            f"a Ray worker has tonnage {_tonnage.VERSION}, and this program {version}: install the same on every node"
        )


@functools.cache
def tasks_here() -> int | None:
    """How many tasks the node of this worker has at once: one for each core that it has for Ray. None where Ray does not tell."""
    try:
        import ray

        own = ray.get_runtime_context().get_node_id()
        cores = [node["Resources"].get("CPU", 1) for node in ray.nodes() if node["NodeID"] == own]
    except Exception:
        # Another release has it otherwise: no reason not to do the work.
        return None
    return max(1, int(cores[0])) if cores else None


def without(words: list[str], flag: str) -> tuple[list[str], str | None]:
    """Words without a flag and its value, and the value."""
    kept: list[str] = []
    value = None
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest], value
        if word == flag:
            value = next(rest, "")
        elif word.startswith(f"{flag}="):
            value = word[len(flag) + 1 :]
        else:
            kept.append(word)
    return kept, value


def spread(
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    address: str,
    in_flight: int | None,
    *,
    doing: str,
    short: bool = True,
) -> Generator[tuple[tuple[Any, ...], Any], None, None]:
    """Each call's arguments and what comes of it, or why it is ``Lost``, in the order in which they are done. What is lost is given
    out again behind all others, three times at most: by then a node may have memory again.

    Whoever stops, by Ctrl-C or by an error, leaves no task behind: none begins any more, those under way are done soon if they are
    ``short`` and are asked to end if not, and what takes longer than that is ended.
    """
    if in_flight is not None and in_flight < 1:
        raise UsageError("in_flight is a number of tasks, from 1")
    if calls:
        with _connected(address) as ray:
            task = ray.remote(num_cpus=1, max_retries=0)(function)
            yield from _tasks(ray, task, calls, _Room(ray, in_flight), _Progress(doing, len(calls)), short)


def _tasks(
    ray: Any, task: Any, calls: Sequence[tuple[Any, ...]], room: _Room, progress: _Progress, short: bool
) -> Generator[tuple[tuple[Any, ...], Any], None, None]:
    # Each with how often it was lost.
    waiting: dict[Any, tuple[tuple[Any, ...], int]] = {}
    following = ((call, 0) for call in calls)
    again: collections.deque[tuple[tuple[Any, ...], int]] = collections.deque()
    try:
        while True:
            while len(waiting) < room.tasks():
                given = next(following, None) or (again.popleft() if again else None)
                if given is None:
                    break
                waiting[task.remote(*given[0])] = given
            if not waiting:
                return
            try:
                done = ray.wait(list(waiting), num_returns=1, timeout=_SILENT)[0]
                if not done and not room.cores():
                    progress.say_once("the Ray cluster has no CPU yet: waiting until it has one")
            except ray.exceptions.RayError as error:
                raise Error(f"Ray failed: {_first_line(error)}") from None
            for reference in done:
                call, lost = waiting.pop(reference)
                result = _result(ray, reference)
                if isinstance(result, Lost) and lost < _RETRIES:
                    again.append((call, lost + 1))
                    continue
                progress.one_more()
                yield call, result
    finally:
        progress.gone()
        if waiting:
            # Tasks begin in the order in which they were given. Ray 2.60 may end this program where one that is to be taken back is
            # done at the same moment.
            # Where Ray itself is gone nothing is left, and what ended this is what is told.
            with contextlib.suppress(ray.exceptions.RayError):
                under_way = room.cores() if short else 0
                for reference in reversed(list(waiting)[under_way:]):
                    ray.cancel(reference)
                _, left = ray.wait(list(waiting), num_returns=len(waiting), timeout=_ENDING)
                for reference in left:
                    ray.cancel(reference, force=True)


class _Room:
    """How many tasks may be there: a cluster that grows has more cores by and by, and grows for tasks that wait."""

    def __init__(self, ray: Any, given: int | None) -> None:
        self._ray, self._tasks = ray, given
        self._is_given = given is not None
        self._asked = 0.0

    def tasks(self) -> int:
        now = time.monotonic()
        if self._tasks is None or (not self._is_given and now - self._asked > _ASKED):
            self._asked = now
            self._tasks = max(_FEWEST, 2 * self.cores())
        return self._tasks

    def cores(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except _lost(ray) as error:
        return Lost(f"the Ray workers that were at it died: {_first_line(error)}")
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, ModuleNotFoundError):
            raise Error(
                f"a Ray worker has no package {cause.name}: install tonnage {_tonnage.VERSION} on every node"
            ) from None
        # What Ray makes of a task that its worker cannot import.
        if isinstance(cause, RuntimeError) and "failed to import" in str(cause):
            raise Error(f"a Ray worker cannot import tonnage: install tonnage {_tonnage.VERSION} on every node") from None
        if isinstance(cause, RefusedError):
            raise Error(str(cause)) from None
        raise Error(f"a Ray task failed: {_first_line(cause or error)}") from None
    except ray.exceptions.RayError as error:
        raise Error(f"Ray failed: {_first_line(error)}") from None


def _lost(ray: Any) -> tuple[type[BaseException], ...]:
    """What Ray says of a task whose worker or node is lost; older releases have not all of it."""
    names = ["WorkerCrashedError", "OutOfMemoryError", "NodeDiedError", "LocalRayletDiedError", "ObjectLostError"]
    return tuple(getattr(ray.exceptions, name) for name in names if hasattr(ray.exceptions, name))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class _Progress:
    """A line on standard error, if that is a terminal, as the command has it: how many are done, and how long it may take."""

    def __init__(self, doing: str, of: int) -> None:
        self._doing, self._of, self._done = doing, of, 0
        self._began = self._shown = time.monotonic()
        self._is_seen = sys.stderr is not None and sys.stderr.isatty()
        self._said = ""

    def one_more(self) -> None:
        self._done += 1
        now = time.monotonic()
        if self._is_seen and now - self._shown > 0.2:
            self._shown = now
            left = int((now - self._began) / self._done * (self._of - self._done))
            sys.stderr.write(f"\r\x1b[K{self._doing} {self._done}/{self._of}, {left} s to go")
            sys.stderr.flush()

    def say_once(self, what: str) -> None:
        """Says why nothing is done."""
        if sys.stderr is not None and what != self._said:
            self._said = what
            self.gone()
            print(f"note: {what}", file=sys.stderr, flush=True)

    def gone(self) -> None:
        if self._is_seen and self._shown != self._began:
            sys.stderr.write("\r\x1b[K")


#: The address that this program is connected to by what is here, while it is.
_connected_to: str | None = None


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster: the one that this program is connected to, or one that it is connected to for now."""
    global _connected_to
    try:
        import ray
    except ModuleNotFoundError:
        raise Error("Ray is not installed here: `pip install ray`, or leave it out to use this machine alone") from None
    if ray.is_initialized():
        if address != "auto" and not _is_at(ray, address):
            raise UsageError(
                f"this program is connected to another Ray cluster than {address}: say 'auto' for that one, or call ray.shutdown()"
            )
        yield ray
        return
    _check_that_someone_listens(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError) as error:
        raise Error(f"no Ray cluster at {address}: {_first_line(error)}") from None
    except RuntimeError as error:
        # Of another version of Ray or Python, on several lines.
        raise Error(f"the Ray cluster at {address} is of no use: {' '.join(str(error).split())}") from None
    _connected_to = address
    try:
        yield ray
    finally:
        _connected_to = None
        ray.shutdown()


def _check_that_someone_listens(address: str) -> None:
    """Refuses an address at which there is nobody: Ray would go on asking for a quarter of an hour, also where ``auto`` leads to a
    cluster that died."""
    place, leads = address.removeprefix("ray://"), ""
    if place == address:
        try:
            from ray._private.services import canonicalize_bootstrap_address

            place = str(canonicalize_bootstrap_address(address))
        except Exception:
            # Another release has it otherwise, or there is none to be found, which Ray says by itself.
            if address == "auto":
                return
        if address == "auto":
            leads = ", where 'auto' leads"
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS).close()
    except (OSError, OverflowError) as error:
        name = f"{place}{leads}" if leads else address
        why = getattr(error, "strerror", None) or _first_line(error)
        raise Error(f"no Ray cluster at {name}: {why}") from None


def _is_at(ray: Any, address: str) -> bool:
    """Whether the cluster that this program is connected to has this address."""
    if address == "local":
        return False
    if address.startswith("ray://"):
        # Ray tells no client whom it is connected to.
        return address == _connected_to
    own_host, _, own_port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    host, _, port = address.rpartition(":")
    if port != own_port:
        return False
    if host in (own_host, "localhost", "127.0.0.1"):
        return True
    try:
        return str(socket.gethostbyname(host)) == own_host
    except OSError:
        return False


def stopped(kept: bool) -> int:
    """Says that Ctrl-C ended a command, and returns its exit status."""
    what = "; what is done is kept, the same command goes on from there" if kept else ""
    print(f"note: stopped{what}", file=sys.stderr)
    return 130
