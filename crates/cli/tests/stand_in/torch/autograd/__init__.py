from .graph import _engine_run_backward
