// Package family goes through everything that can happen to an owner, its child and its grandchild while they move between two shards whose
// controllers make what is missing, and checks that nothing is made twice and nothing is missing in the end (I9).
//
// A controller that makes children with generated names counts them in its cache. Such a cache is several watches, of which each is as late as
// it likes. So the order in which an owner and what it controls come to a new shard decides whether that shard sees an owner without
// children, and makes them again.
//
// # The order
//
//  1. The rebalancer asks for the owner. Its shard stops to work on it and on all that it controls, and gives it up; nobody has it then.
//  2. The rebalancer moves what the owner controls, the lowest level first.
//  3. The rebalancer gives the owner its shard, and says which versions of its children and grandchildren the shard has to have seen.
//  4. The shard begins with the owner, and with what it controls, when its watches have reached these versions: the barrier.
//
// The owner of a dead shard is nobody's at once. The barrier is that of what is there when the owner gets its shard, so that a rebalancer that
// is new need not know what the last one has moved. Each [Mutation] leaves one of these out, and a test shows what is made twice then.
//
// # What is modelled
//
// The API server, with a version for each write; a watch of each shard for each of three resources, which delivers in order, some time; two
// processes with controllers for owners and children that wait to see what they have made themselves; an admission that labels what is made
// only while nothing moves; and a rebalancer without a memory, which does what [plan.Decide] says, as the real one. The ring may want the owner
// elsewhere, and a shard may die, at any moment, as often as a [Scope] says.
//
// Not modelled: adoption, orphans and deletion, a resource that a shard does not cache, a shard that comes back, requests that fail.
package family
