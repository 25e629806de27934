// Package signatures contains the tests of what make images signs. They run with make test-signatures, against any
// registry and without a cluster.
//
// Environment variables:
//
//   - SIGNED_IMAGES: the file that lists the images, by digest; if unset, the tests are skipped
//   - SIGNED_KEYS: directory of cosign.pub, whose private key has signed the images, and of other.pub, whose has not
//   - SIGNED_COSIGN, SIGNED_CRANE: the programs
package signatures
