// Package hook lets only the shardtest package create a shard that works without a Lease.
package hook

// WithoutLease makes a *shard.Shard work as if it held its Lease. The shard package sets it when it is initialized.
var WithoutLease func(shard any)
