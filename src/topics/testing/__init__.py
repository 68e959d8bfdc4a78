"""Fakes and checkers for tests, ours and our users'. Production never imports this package.

disk    FakeDisk: decides what a crash leaves (inode, cut and ranges are its parts)
faults  FaultFs: the n-th call of a class fails
order   OrderFs: asserts the order of writes (wrap is what both are made of)
loop    SeededLoop: which task goes next is drawn from a seed
clock, ids, blobs    time that tests move, repeatable ids, a blob store in memory
driving what the broker does, driven in place: no threads, no event loop
oracle  the plain model that a store is compared with (plain, view, routes and honest are its parts)
"""
