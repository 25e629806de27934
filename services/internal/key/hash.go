package key

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"unicode/utf8"
)

// Hash is the place of a key in the hash space. It is less than [Prime] and evenly spread.
type Hash uint32

// Prime is the modulus of the hash, the Mersenne prime 2^31 - 1: every Hash is below it.
const Prime = 1<<31 - 1

const (
	// alphabet contains the characters of names, namespaces, kinds, and groups, the slash between them, and the few other
	// characters in names of some kinds (RBAC). The value of a character is its index plus one; all other characters have
	// the value 0. All characters are ASCII, so an index in bytes is an index in code points.
	alphabet = "abcdefghijklmnopqrstuvwxyz0123456789-./" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + ":_"

	// positions is the number of multipliers. The longest key of a custom resource has 253 (group) + 63 (kind) + 63
	// (namespace) + 253 (name) + 3 (slashes) = 635 code points.
	positions = 640

	// All multipliers are derived from seed and from nothing else. Changing it changes every owner.
	seed = "clusterring key hash v1"
)

// values is the inverse of the alphabet: the value of each ASCII character.
var values = func() (v [utf8.RuneSelf]uint8) {
	for i := range len(alphabet) {
		v[alphabet[i]] = uint8(i + 1)
	}

	return v
}()

// multipliers are the M of the package documentation.
var multipliers = func() (m [positions]uint64) {
	for i := range m {
		m[i] = constant(strconv.Itoa(i))
	}

	return m
}()

// The remaining constants of the package documentation.
var (
	lengthMultiplier = constant("length")        // L
	offset           = constant("offset")        // C
	finalMultiplier  = constant("multiply")      // A
	finalOffset      = constant("multiply then") // B
)

// constant derives a number in [1, Prime) from seed and a label: the first 8 bytes, read as a big-endian number, of
// sha256(seed + "/" + label), modulo Prime - 1, plus 1.
func constant(label string) uint64 {
	sum := sha256.Sum256([]byte(seed + "/" + label))
	return binary.BigEndian.Uint64(sum[:8])%(Prime-1) + 1
}

// Hash returns the key's place in the hash space: the hash of [Key.String] as described in the package documentation.
// It accepts any strings, allocates nothing, and returns the same number in every process and version.
func (k Key) Hash() Hash {
	var s sum
	s.add(k.Group)
	s.addByte('/')
	s.add(k.Kind)
	s.addByte('/')
	s.add(k.Namespace)
	s.addByte('/')
	s.add(k.Name)

	return s.hash()
}

// sum is the state of step 2 of the hash.
type sum struct {
	total    uint64 // of value * multiplier; reduced once per round of multipliers, so it stays far below 2^63
	position int    // of the next code point, modulo positions
	rounds   uint64 // completed rounds of positions
}

func (s *sum) add(part string) {
	for _, c := range part {
		var v uint8
		if c < utf8.RuneSelf {
			v = values[c]
		}
		s.addValue(v)
	}
}

func (s *sum) addByte(c byte) { s.addValue(values[c]) }

func (s *sum) addValue(v uint8) {
	s.total += uint64(v) * multipliers[s.position]

	s.position++
	if s.position == positions {
		s.total %= Prime
		s.position = 0
		s.rounds++
	}
}

func (s *sum) hash() Hash {
	length := s.rounds*positions + uint64(s.position)
	x := (s.total + length%Prime*lengthMultiplier + offset) % Prime

	return Hash((fifthPower(x)*finalMultiplier + finalOffset) % Prime)
}

// fifthPower returns x^5 modulo Prime. It maps different x < Prime to different results, because 5 does not divide
// Prime - 1 = 2 * 3^2 * 7 * 11 * 31 * 151 * 331.
func fifthPower(x uint64) uint64 {
	square := x * x % Prime
	return square * square % Prime * x % Prime
}
