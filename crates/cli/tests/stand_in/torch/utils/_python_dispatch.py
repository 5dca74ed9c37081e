class TorchDispatchMode:
    def __enter__(self): pass
def _disable_current_modes(): pass
