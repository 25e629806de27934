// Package apiserver is a Kubernetes API server in memory, as far as sharding uses one: the metadata of objects, and
// Leases.
//
// It answers like the real one: lists in pages of one version, watches that begin at a version and follow label
// selectors, bookmarks, streaming lists, compaction, conflicts, and resources that appear, disappear and change their
// version. The mutations of package simulation show that it is no more lenient.
//
// The time is the time of the caller's bubble (testing/synctest). The duration of each request is a hash of the seed,
// the client, the request, and the number of earlier equal requests. Therefore, no two requests are executed at the
// same instant, and a history repeats itself exactly although goroutines run in any order.
//
// A [Fault] makes requests fail. [Server.Counts] counts them.
package apiserver
