// Package family explores everything that can happen to an owner, its child, and its grandchild while they move between
// two shards whose controllers create what is missing, and checks that nothing is created twice and that nothing is
// missing in the end (I9).
//
// A controller that creates children with generated names counts them in its cache. Such a cache consists of several
// watches, each of which may be arbitrarily late. The order in which an owner and the objects that it controls reach a
// new shard therefore determines whether that shard sees an owner without children, and creates them again.
//
// # The order
//
//  1. The rebalancer drains the owner. Its shard stops working on the owner and on everything that it controls, and
//     releases the owner, which then has no shard.
//  2. The rebalancer moves what the owner controls, the lowest level first.
//  3. The rebalancer assigns the owner, and records the versions of its children and grandchildren that the shard must
//     have seen.
//  4. The shard begins with the owner, and with what it controls, when its watches have reached these versions: the
//     barrier.
//
// The owner of a dead shard has no shard immediately. The barrier contains what exists when the owner is assigned, so a
// new rebalancer need not know what the previous one has moved. Each [Mutation] leaves out one of these steps, and a
// test shows what is then created twice.
//
// # What is modelled
//
// The model contains: the API server, with a version for each write; a watch of each shard for each of three resources,
// which delivers events in order, at some time; two processes with controllers for owners and children that wait until
// they see what they have created themselves; an admission that gives each new object the shard that creates it; and a
// rebalancer without memory, which follows [plan.Decide] like the real one, and whose searches find only objects that
// have a shard. The owner may belong to another shard, and a shard may die, at any moment, as often as a [Scope]
// allows.
//
// The model does not contain writes that admission misses, adoption, orphans, deletion, resources that a shard does not
// cache, shards that come back, and failed requests.
package family
