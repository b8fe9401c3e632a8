"""Fusion: which values of a graph are written to memory, and the groups that compute them; each choice says why.

Walking from the outputs to the inputs, every op is either *materialised* (its result is a buffer, it ends a group) or
*inlined* (computed inside the groups that read it). A value is inlined when that is legal and costs no extra work worth
a buffer:

- movement (reshape, transpose, slice ...) is a change of subscripts and goes into whoever reads it
- a pointwise op goes into its one reading group, and into each of several where computing it again costs less than memory
- a reduction goes into the pointwise or reduction group that reads it
- a contraction goes into the pointwise group that makes each element of one of its elements, however often it reads that (an epilogue)

A pointwise value or a reduction that several groups read, or the caller, can be *stored beside* the results of the first
group that reads it: that computes it and stores it for the others. So a group may have several results.

`regions/facts` says what an op is by itself; here `choices` holds what is decided so far, `legality` and `profit` say of one value why
it is not computed where it is read, `decision` is what reports show, and `partition` drives them.
"""
