// Package hook lets the shardtest package make a shard that works without holding a Lease, which must not be possible for
// anybody else.
package hook

// WithoutLease makes a *shard.Shard work as if it held its Lease. The shard package sets it when it is initialised.
var WithoutLease func(shard any)
