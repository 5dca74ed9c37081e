"""The pytest plugin, in pytest itself."""

from __future__ import annotations

import json

from conftest import recording

MEASURES = """
import tonnage
def test_step(gpu_memory):
    gpu_memory.measure(tonnage.read({path!r}))
    gpu_memory.assert_peak({arguments})
"""


def run(pytester, arguments: str, *options: str, name: str = "mlp_seed.default.stacks"):
    pytester.makepyfile(MEASURES.format(path=str(recording(name)), arguments=arguments))
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)


def test_a_peak_is_asserted_within_its_tolerance(pytester):
    for arguments in ["195529216, tolerance=0", '"186.47 MiB"', '"180MiB", tolerance="5%"', '"180MiB", tolerance="8MiB"']:
        run(pytester, arguments).assert_outcomes(passed=1)
    failed = run(pytester, '"180MiB"')
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        ["*the peak of allocated memory is 186.47 MiB (195,529,216 bytes), 6.47 MiB more than expected: 180.00 MiB*"]
    )
    failed.stdout.fnmatch_lines(["*What was live when most was*"])
    run(pytester, '"200MiB"').assert_outcomes(failed=1)


def test_a_baseline_is_written_compared_and_explained(pytester):
    missing = run(pytester, "")
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*has no baseline yet: pytest --tonnage-update writes one*"])
    run(pytester, "", "--tonnage-update").assert_outcomes(passed=1)
    baselines = json.loads((pytester.path / "tonnage-baselines.json").read_text())
    assert list(baselines.values()) == [195_529_216]
    run(pytester, "").assert_outcomes(passed=1)
    grown = run(pytester, "", name="gpt2_varlen.default")
    grown.assert_outcomes(failed=1)
    grown.stdout.fnmatch_lines(["*more than the baseline*", "*allocated peak*", "*pytest --tonnage-update*"])


def test_every_device_of_ours_can_be_measured(pytester):
    pytester.makepyfile(
        """
        import tonnage
        def test_recipe(gpu_memory):
            gpu_memory.measure(tonnage.predict("gpt2", batch=1))
            predicted = gpu_memory.peak
            gpu_memory.assert_peak(predicted, tolerance=0)
        def test_run(gpu_memory):
            gpu_memory.measure(tonnage.run("mlp", steps=1, width=16, layers=2, batch=4, device="host"))
            gpu_memory.assert_peak(tonnage.predict("mlp", width=16, layers=2, batch=4, steps=1).allocated_peak, tolerance=0)
        def test_nothing(gpu_memory):
            import pytest
            with pytest.raises(tonnage.RecordError, match="nothing to measure"):
                gpu_memory.peak
        def test_wrong(gpu_memory):
            import pytest
            with pytest.raises(tonnage.UsageError, match="a snapshot, a recording or a prediction, not int"):
                gpu_memory.measure(5)
        def test_tolerance(gpu_memory):
            import pytest
            gpu_memory.measure(tonnage.predict("gpt2", batch=1))
            with pytest.raises(tonnage.UsageError, match="is no tolerance"):
                gpu_memory.assert_peak(1, tolerance="x%")
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=5)


def test_baselines_that_cannot_be_read_are_named(pytester):
    for text in ["{", "[]", '{"a": "b"}']:
        (pytester.path / "tonnage-baselines.json").write_text(text)
        for options in [(), ("--tonnage-update",)]:
            failed = run(pytester, "", *options)
            failed.assert_outcomes(failed=1)
            failed.stdout.fnmatch_lines(["*tonnage-baselines.json has no baselines that can be read: *"])
        assert (pytester.path / "tonnage-baselines.json").read_text() == text


SEVERAL = """
import pytest, tonnage
class TestOne:
    def test_step(self, gpu_memory):
        gpu_memory.measure(tonnage.predict("gpt2", batch=1))
        gpu_memory.assert_peak()
class TestTwo:
    @pytest.mark.parametrize("batch", [2, 3])
    @pytest.mark.parametrize("word", ["a b", "a-b"])
    def test_step(self, gpu_memory, batch, word):
        gpu_memory.measure(tonnage.read(RECORDINGS[batch]))
        gpu_memory.assert_peak()
"""


def test_tests_of_one_name_have_baselines_of_their_own_also_in_several_processes(pytester):
    paths = {2: str(recording("mlp_seed.default.stacks")), 3: str(recording("gpt2_varlen.default"))}
    pytester.makepyfile(SEVERAL.replace("RECORDINGS", repr(paths)))
    apart = ("-p", "no:cacheprovider", "-n", "3")
    pytester.runpytest_subprocess(*apart, "--tonnage-update").assert_outcomes(passed=5)
    baselines = json.loads((pytester.path / "tonnage-baselines.json").read_text())
    file = next(pytester.path.glob("test_*.py")).name
    assert set(baselines) == {f"{file}::TestOne::test_step"} | {
        f"{file}::TestTwo::test_step[{word}-{batch}]" for word in ("a b", "a-b") for batch in (2, 3)
    }
    assert len(set(baselines.values())) == 3
    assert len(list((pytester.path / "tonnage-baselines").iterdir())) == 4
    pytester.runpytest_subprocess(*apart).assert_outcomes(passed=5)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=5)
