// Package key names the object that decides where work goes, and hashes that name in a way that Go and
// Kubernetes CEL compute alike.
//
// # What is hashed
//
// The partition key of a main object is its API group, kind, namespace and name; that of a controlled object is
// the same four of the owner that controls it. The API version is left out, because an object must have one key
// through every version of its API, and the uid too, because nobody knows it at admission.
//
// # How
//
// Assignment shall also be possible inside the API server, in a MutatingAdmissionPolicy. CEL has no hash
// function, but integers, split, indexOf, transformList and sum, which is all that a multilinear hash needs.
// With the key written as group/kind/namespace/name, c[i] its code points and n their number, a hash takes four
// steps, all of them modulo the prime p = 2^31 - 1:
//
//  1. v[i] = 1 + the index of c[i] in the alphabet, or 0 for a character that is not in it
//  2. x = v[0]*M[0] + v[1]*M[1] + … + n*L + C, with fixed, random multipliers M, L and an offset C
//  3. y = x^5, a permutation of the numbers below p, which breaks the linearity of step 2
//  4. h = y*A + B, which moves the numbers that the power leaves alone, such as 0 and 1
//
// Every intermediate result fits into 63 bits, so that CEL's checked int64 arithmetic never overflows.
//
// # A worked example
//
// The ConfigMap default/a is core's, and core's group is empty, so its key is
//
//	/ConfigMap/default/a
//
// of n = 20 code points. The alphabet is abc…xyz0123456789-./ABC…XYZ:_, so the values v are 39 for '/', 42 for 'C',
// 15 for 'o', 14 for 'n', … and 1 for the 'a' at the end. Thus
//
//	x = (39*M[0] + 42*M[1] + 15*M[2] + 14*M[3] + … + 1*M[19] + 20*L + C) mod p = 2055878889
//	y = x^5 mod p = 393597430
//	h = (y*A + B) mod p = 720116427
//
// # Why this form
//
// Multilinear hashing is Carter and Wegman's ("Universal classes of hash functions", 1979); that it suits strings
// of varying length once the length has a multiplier of its own is shown, with much else, by Lemire and Kaser
// ("Strongly universal string hashing is fast", 2014). With M chosen at random, two different keys of valid
// characters share a hash with a probability of about 1/p. There is a multiplier of its own for every position of the longest key
// that an API server admits for a custom resource; beyond that they repeat.
//
// Refused: a polynomial (FNV, Rabin-Karp), because its steps depend on each other and CEL has no fold over
// integers; a cryptographic hash, because CEL has none; the bare linear sum of step 2, because names that count
// up would walk over the ring in equal strides.
//
// The hash spreads honest names evenly. It is no defence against somebody who picks names to share one hash:
// all constants are public, and the worst that such names do is to share a shard.
package key

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Key identifies the object that an assignment is decided for. It is comparable, and two keys are equal exactly
// if they name the same object, whatever version of its API that was read through.
//
// The API server keeps '/' out of all four parts. The zero value is a valid Key that names no object.
type Key struct {
	// Group is the API group, empty for the core group.
	Group string
	// Kind is the kind in that group, such as Deployment.
	Kind string
	// Namespace is empty for cluster-scoped objects.
	Namespace string
	// Name is metadata.name. It is empty while a name is still to be generated: such a key is not the object's yet.
	Name string
}

// OfObject returns the key of a main object of the given kind. It reads the object's namespace and name.
func OfObject(gk schema.GroupKind, obj metav1.Object) Key {
	return Key{Group: gk.Group, Kind: gk.Kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}
}

// OfOwner returns the key of a controlled object, which is that of its controller: gk and name are taken from
// the owner reference, namespace is the controlled object's own, or empty if the owner's kind is cluster-scoped.
func OfOwner(gk schema.GroupKind, namespace, name string) Key {
	return Key{Group: gk.Group, Kind: gk.Kind, Namespace: namespace, Name: name}
}

// String returns the canonical form group/kind/namespace/name, always with three slashes. Different keys have
// different forms, because no part of a valid key contains a slash.
func (k Key) String() string {
	return k.Group + "/" + k.Kind + "/" + k.Namespace + "/" + k.Name
}
