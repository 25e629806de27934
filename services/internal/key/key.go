// Package key defines the partition key of an object, which determines its shard, and a hash of the key that Go and
// Kubernetes CEL compute with the same result.
//
// # What is hashed
//
// The partition key of a main object consists of its API group, kind, namespace, and name, unless the ring gives
// objects that belong together one key, by their namespace or a label: see [Rule]. The key of a controlled object is
// that of its owner. The API version is not part of the key, because an object must have the same key in every version
// of its API. The uid is not part of the key, because it is not known at admission.
//
// # How
//
// Assignment must also be possible inside the API server, in a MutatingAdmissionPolicy. CEL has no hash function, but
// it has integers, split, indexOf, transformList, and sum. A multilinear hash needs nothing else. The key is written as
// group/kind/namespace/name; c[i] are its code points, and n is their number. A hash takes four steps, all of them
// modulo the prime p = 2^31 - 1:
//
//  1. v[i] = 1 + the index of c[i] in the alphabet, or 0 for a character that is not in it
//  2. x = v[0]*M[0] + v[1]*M[1] + … + n*L + C, with fixed, random multipliers M, L and an offset C
//  3. y = x^5, a permutation of the numbers below p, which breaks the linearity of step 2
//  4. h = y*A + B, which moves the numbers that the power does not change, such as 0 and 1
//
// Every intermediate result fits into 63 bits, so that CEL's checked int64 arithmetic never overflows.
//
// # A worked example
//
// The group of the ConfigMap default/a is the core group, which is empty, so its key is
//
//	/ConfigMap/default/a
//
// It has n = 20 code points. The alphabet is abc…xyz0123456789-./ABC…XYZ:_, so the values v are 39 for '/', 42 for 'C',
// 15 for 'o', 14 for 'n', … and 1 for the 'a' at the end. Therefore:
//
//	x = (39*M[0] + 42*M[1] + 15*M[2] + 14*M[3] + … + 1*M[19] + 20*L + C) mod p = 2055878889
//	y = x^5 mod p = 393597430
//	h = (y*A + B) mod p = 720116427
//
// # Why this form
//
// Multilinear hashing is by Carter and Wegman ("Universal classes of hash functions", 1979). Lemire and Kaser
// ("Strongly universal string hashing is fast", 2014) show, among other results, that it suits strings of varying
// length if the length has its own multiplier. With random M, two different keys of valid characters have the same hash
// with a probability of about 1/p. Every position of the longest key that an API server admits for a custom resource
// has its own multiplier; after that, the multipliers repeat.
//
// Rejected alternatives: a polynomial (FNV, Rabin-Karp), because its steps depend on each other and CEL has no fold
// over integers; a cryptographic hash, because CEL has none; the bare linear sum of step 2, because names that count up
// would advance in equal strides through the hash space.
//
// The hash spreads ordinary names evenly. It does not protect against somebody who chooses names with the same hash:
// all constants are public. The worst effect of such names is that they share a shard.
package key

// Key identifies the object, or what several objects have in common, that determines an assignment. It is comparable.
// Two keys are equal exactly if they identify the same, whatever API version the object was read in.
//
// The API server rejects '/' in all four parts. The zero value is a valid Key that identifies no object.
type Key struct {
	// Group is the API group; empty for the core group.
	Group string
	// Kind is the kind in that group, such as Deployment; empty for a key by a label.
	Kind string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	// Name is metadata.name, or the value of a label. It is empty if the name is yet to be generated: such a key is not
	// the key of the object yet.
	Name string
}

// String returns the canonical form group/kind/namespace/name, always with three slashes. Different keys have
// different forms, because no part of a valid key contains a slash.
func (k Key) String() string {
	return k.Group + "/" + k.Kind + "/" + k.Namespace + "/" + k.Name
}
