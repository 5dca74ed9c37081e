class StorageWeakRef:
    def __init__(self, storage): pass
