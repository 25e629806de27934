// Package ordinal leads from ordinals to a ring: from a controller in a StatefulSet whose Pods share the objects by a hash and their ordinals, to
// shards, without a stop, and without an object that has two processes or none. See docs/ordinals.md for the steps, and [AddClaims].
package ordinal
