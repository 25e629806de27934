// Package together tests that objects that belong together are at one shard, with everything that takes part: the
// binaries of the services with the permissions of their service accounts, and shards that use pkg/shard.
package together
