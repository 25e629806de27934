// Package apiserver is a Kubernetes API server in memory, as far as sharding uses one: the metadata of objects, and Leases.
//
// It answers as the real one does: lists by page from one version, watches that begin at a version and follow label selectors,
// bookmarks, streaming lists, compaction, conflicts, resources that come, go and change their version. Tests compare the
// answers with what is documented of the real one.
//
// Time is that of the caller's bubble (testing/synctest). Every request takes a time that is a hash of the seed, the client,
// what is asked, and how often that was asked before. So no two requests are carried out at the same instant, and a history
// repeats itself exactly although goroutines run in any order.
//
// Requests fail by [Fault], and are counted by [Server.Counts].
package apiserver
