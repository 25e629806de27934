// Package auth authenticates and authorizes callers by the users and permissions of Kubernetes.
//
// A caller is identified by a client certificate (its common name is the user, and its organizations are the groups) or by a bearer
// token, which the API server reviews. The API server also authorizes: a query about a ring requires permission to "get" the subresource
// "diagnostics" of that ClusterRing. A query about several rings at a time requires this permission on all rings. [Guard] checks every
// call. It uses the authenticators of aggregated API servers.
//
// # Invariants
//
//  1. Nothing about a ring leaves the server without a positive answer of the API server that is at most [Options.TTL] old. This also
//     applies to each message of a stream: a user who has lost the permission receives no further messages.
//  2. A request whose ring is not known requires permission on all rings.
//  3. If the API server does not answer, the call fails with UNAVAILABLE. It is neither permitted nor denied.
//  4. Callers with wrong tokens, however many, delay neither calls with tokens that were valid before, nor calls with new tokens from
//     other addresses.
//  5. Neither tokens nor their hashes are logged. An error contains only facts that the caller has sent itself.
//
// # Rejected alternatives
//
// The factory authenticatorfactory does not distinguish an invalid token from an API server that does not answer, and sends a review for
// every use of an invalid token. The token cache with our own reviewer does neither.
//
// The authorizer of k8s.io/apiserver sends a review for each of a thousand watchers of one user. It also depends on CEL and a trace
// exporter, for match conditions that nobody uses here.
package auth
