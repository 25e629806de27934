// Package auth decides who asks and what they may ask, by Kubernetes' own users and rights.
//
// A client certificate (its common name is the user, its organizations are the groups) or a bearer token, which the API server
// reviews, identifies a caller. What the caller may do is what the API server's own authorization says: to ask about a
// ring takes the right to "get" the subresource "diagnostics" of that ClusterRing, and to ask about several at once takes that
// right on all of them. [Guard] stands before every call and keeps to it. The authenticators of aggregated API servers
// find out who a caller is.
//
// # Invariants
//
//  1. Nothing of a ring leaves the server without a positive answer of the API server that is no older than [Options.TTL]. This
//     holds for each message of a stream, too: who has lost the right gets no more.
//  2. A request whose ring is not known takes the right on all rings.
//  3. If the API server cannot be asked, the call fails with UNAVAILABLE: that nothing is known is no permission, and no refusal.
//  4. Neither tokens nor their hashes are logged, and no error tells a caller more than what it has shown itself.
//
// # Refused
//
// The factory authenticatorfactory does not tell a token that is not valid from an API server that does not answer, and asks again
// about every token that is not valid. The cache for tokens does both with a reviewer of our own.
//
// The authorizer of k8s.io/apiserver asks once for each of a thousand watchers of one user. It also brings CEL and an exporter of
// traces, for match conditions that nobody has here.
package auth
