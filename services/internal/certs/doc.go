// Package certs maintains the serving certificate of a service, and the CA certificates that clients verify it with.
//
// [Secret] creates both itself: every replica reads one Secret, serves its certificate, and creates or replaces what is missing or
// old. [Policy.Next], a pure function, decides what to do. Writes depend on the Secret's resourceVersion: if several replicas see
// the same need, one succeeds, and the others use its result. No replica waits for a leader: a fresh installation is ready as soon
// as its first replica has written the Secret. [Files] reads both from files that somebody else maintains. [ConfigMap] publishes
// the CA certificates to clients that read them in the cluster.
//
// # Invariants
//
//  1. A certificate is served only after it has been in the Secret, and after its CA has been in the bundle for
//     [Policy.Overlap], unless no other certificate works.
//  2. The CA of a served certificate stays in the bundle.
//  3. A Secret that is deleted or corrupted is replaced in the same gradual way, as long as one replica remembers it. To
//     request a rotation, delete the Secret.
//  4. A ConfigMap never gets a bundle that is older than its current one, whichever replica writes it.
//
// # Rejected alternative
//
// github.com/open-policy-agent/cert-controller also maintains such a Secret. However, it serves from files, and so waits until the
// kubelet refreshes a mounted Secret. It injects the CA into a fixed list of webhook configurations, but ours come and go with
// rings. It replaces a CA immediately, without a time in which both are trusted, so calls fail in between.
package certs
