def tree_flatten(tree): pass
def tree_unflatten(leaves, spec): pass
