// Package certs keeps the certificate that a service serves with, and the authorities that its clients verify it by.
//
// [Secret] makes both itself: every replica reads one Secret, serves what it holds, and makes or replaces what is missing or
// grows old. What to do is decided by [Policy.Next], purely; writes are guarded by the Secret's resourceVersion, so that of
// several replicas which see the same need one acts, and the others take what it has made. Nobody waits for a leader: a fresh
// installation is ready as soon as its first replica has written the Secret. [Files] reads both from files that somebody else
// maintains. [ConfigMap] shows the authorities to clients that read them in the cluster.
//
// # Invariants
//
//  1. A certificate is served only after it has been in the Secret, and its authority in the bundle for [Policy.Overlap],
//     except when there is no other that works.
//  2. The authority of a certificate that is served stays in the bundle.
//  3. A Secret that is deleted or destroyed is replaced in the same, gentle way, as long as one replica remembers it. This
//     is how a rotation is ordered: delete the Secret.
//  4. A ConfigMap gets no bundle that is older than the one it holds, whichever replica writes it.
//
// # Refused
//
// github.com/open-policy-agent/cert-controller maintains such a Secret too, but serves from files, and so waits for a
// mounted Secret to be refreshed by the kubelet; it injects the authority into a list of webhook configurations that is
// fixed at start, and ours come and go with rings; and it replaces an authority at once, without a time in which both are
// trusted, so that calls fail in between.
package certs
