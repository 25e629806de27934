// Package ring says which shard owns which part of the hash space, from the names of the shards alone.
package ring

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/clusterring/clusterring/services/internal/key"
)

// Tokens is the number of equal parts that the hash space is cut into (the Q of the literature).
const Tokens = 1 << tokenBits

const (
	tokenBits = 14
	hashBits  = 31

	// algorithm names the rules by which tokens find their owners. Whoever changes an owner of any token changes it, so
	// that replicas of both versions see by the fingerprint that they disagree.
	algorithm = "clusterring ring v2"
	// scores names the rule by which shards are scored, which is older than the bound: so that most tokens keep their
	// owner when a new version changes another rule.
	scores = "clusterring ring v1"

	// A shard owns at most boundPermille/1000 of the mean, rounded up. Up to 50 shards that is less than 1.05 times the mean,
	// which 1050 would be just above.
	boundPermille = 1049
)

// Ring is an immutable table from tokens to the shards that own them. It may be used by any number of goroutines. The
// zero value is a ring without shards and without a fingerprint.
//
// # Invariants
//
//  1. The table is a function of the set of names: neither order nor duplicates nor earlier rings have a say. All who
//     know the same shards agree, without talking to each other.
//  2. If there is a shard, every token has exactly one owner, and it is one of the shards.
//  3. No shard owns more than ceil(1.049 * Tokens / shards) tokens.
//  4. A shard that joins takes its share from all, one that leaves gives its share to all, and other tokens stay where
//     they are, but for the few that invariant 3 pushes on.
//  5. Different sets have different fingerprints, as far as 64 bits of SHA-256 can tell.
//
// # How it is built
//
//  1. Each name and each token gets a 64-bit seed. Mixed, the two seeds are the score that the shard has for the token.
//     So every token has its own, random order of preference among the shards (rendezvous hashing, Thaler and
//     Ravishankar 1998).
//  2. The tokens are taken in ascending order. Each goes to the shard with the highest score for it among those that are
//     still below the bound of invariant 3.
//
// An object is found by the upper 14 bits of the 31-bit hash of its key, which are its token.
//
// # A worked example
//
// With the shards a, b and c the bound is ceil(1.049 * 16384 / 3) = 5729. Say that token 0 has the highest score with b,
// the next with a, the lowest with c. Then b owns token 0. If b leaves, a owns it, and the tokens that had their
// highest score with a or c stay. If d joins, it takes the token only if its score is higher than b's, as happens to
// one token in four. Toward the end of the table, b may own 5729 tokens already; then a token that prefers b goes to
// its second choice. With 3 shards that hardly ever happens, since chance spreads the tokens within 1 % or so; with 50
// shards it happens to fewer than one token in a hundred.
//
// # Figures
//
// Averages over 100 random sets of names: the fullest of 3, 10 and 50 shards has 1.01, 1.04 and 1.05 times the mean;
// when a shard joins or leaves, 1.00, 1.00 and 1.07 times its own tokens change their owner. Beyond 50 shards, a
// shard's tokens get few and chance more uneven, so that the bound pushes on more of them: 1.2 times at 100 shards, 1.9
// at 200, 1.7 at 500.
//
// # What was refused
//
//   - Consistent hashing with 100 random tokens per shard: the fullest of 50 shards then has 1.23 times the mean, and a
//     look-up is a binary search. Cutting the space into equal parts is the third strategy of the Dynamo paper (DeCandia
//     et al. 2007), which found it the best of three.
//   - Rendezvous hashing per object, without a table: no bound, and the cost of a look-up grows with the shards.
//   - Jump hashing: it numbers the shards, and only the last one may leave.
//   - Maglev's table: the departure of a shard also moves tokens between those that stay.
//   - Consistent hashing with bounded loads (Mirrokni et al. 2016) of objects, not tokens: it needs to know all objects.
type Ring struct {
	shards      []string // sorted, without duplicates
	owners      []int32  // by token: index into shards; empty without shards
	owned       []int32  // by index into shards: number of tokens
	fingerprint string

	favourites lazyFavourites // for Ranking alone
}

// New returns the ring of the given shards. Their order does not matter, duplicates count once, and the slice is not
// kept. Without shards no token has an owner. It takes about 2 ms at 50 shards and 20 ms at 1,000; [Cache] avoids
// building the same ring twice.
func New(shards []string) *Ring {
	names := canonical(shards)
	r := &Ring{shards: names, fingerprint: fingerprint(names)}
	r.owners, r.owned = assign(names, Tokens)
	return r
}

// Owner returns the shard that owns the keys of the given hash, or ok false if the ring has no shards. It takes
// constant time and allocates nothing.
func (r *Ring) Owner(h key.Hash) (shard string, ok bool) { return r.OwnerOf(r.Token(h)) }

// Token returns the token that the hash falls on, from 0 to Tokens - 1. It is the same for every ring.
func (r *Ring) Token(h key.Hash) int { return (int(h) >> (hashBits - tokenBits)) % Tokens }

// OwnerOf returns the shard that owns the token, or ok false if there is no such token or the ring has no shards.
func (r *Ring) OwnerOf(token int) (shard string, ok bool) {
	if token < 0 || token >= len(r.owners) {
		return "", false
	}
	return r.shards[r.owners[token]], true
}

// Shards returns the names of all shards, sorted. The slice is the caller's.
func (r *Ring) Shards() []string { return slices.Clone(r.shards) }

// Has says whether the shard is on the ring.
func (r *Ring) Has(shard string) bool {
	_, ok := slices.BinarySearch(r.shards, shard)
	return ok
}

// Len returns the number of shards.
func (r *Ring) Len() int { return len(r.shards) }

// TokensOf returns how many tokens the shard owns; none if it is not on the ring.
func (r *Ring) TokensOf(shard string) int {
	i, ok := slices.BinarySearch(r.shards, shard)
	if !ok {
		return 0
	}
	return int(r.owned[i])
}

// Losers returns the shards, sorted, that own a token of the ring before and not that of the ring after, and are on both: where
// objects are that shall move although their shard stays. It looks at each token once.
func Losers(before, after *Ring) []string {
	lost := make([]bool, len(before.shards))
	for t := range min(len(before.owners), len(after.owners)) {
		i := before.owners[t]
		lost[i] = lost[i] || before.shards[i] != after.shards[after.owners[t]]
	}
	var losers []string
	for i, name := range before.shards {
		if lost[i] && after.Has(name) {
			losers = append(losers, name)
		}
	}
	return losers
}

// Fingerprint returns 16 hexadecimal digits that stand for the set of shards and the algorithm: two replicas with equal
// fingerprints have equal tables, as far as 64 bits of SHA-256 can tell.
func (r *Ring) Fingerprint() string { return r.fingerprint }

// canonical returns the names sorted and without duplicates, as a copy.
func canonical(shards []string) []string {
	names := slices.Clone(shards)
	slices.Sort(names)
	return slices.Compact(names)
}

// fingerprint hashes the algorithm and the canonical names, each preceded by its length, so that no two sets are
// written alike.
func fingerprint(names []string) string {
	h := sha256.New()
	for _, s := range append([]string{algorithm}, names...) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// bound returns the most tokens that one of n shards may own: ceil(1.049 * Tokens / n).
func bound(n int) int32 {
	return int32((boundPermille*Tokens + 1000*n - 1) / (1000 * n))
}

// candidate is a shard that is still below the bound.
type candidate struct {
	index int32
	seed  uint64
}

// assign gives each of the first tokens an owner, as the doc of [Ring] describes, and counts them per shard. The names
// are canonical. The owner of a token does not depend on later tokens.
func assign(names []string, tokens int) (owners, owned []int32) {
	if len(names) == 0 {
		return nil, nil
	}
	candidates := make([]candidate, len(names))
	for i, name := range names {
		candidates[i] = candidate{index: int32(i), seed: seedOf(name)}
	}
	limit := bound(len(names))
	owners, owned = make([]int32, tokens), make([]int32, len(names))
	for t := range owners {
		best := preferred(candidates, tokenSeed(t))
		i := candidates[best].index
		owners[t] = i
		if owned[i]++; owned[i] == limit {
			candidates = slices.Delete(candidates, best, best+1)
		}
	}
	return owners, owned
}

// preferred returns which candidate has the highest score for the token; the first of equals, which has the lowest
// name.
func preferred(candidates []candidate, token uint64) int {
	best, highest := 0, uint64(0)
	for i := range candidates {
		if s := score(candidates[i].seed, token); s > highest {
			best, highest = i, s
		}
	}
	return best
}

// score is how much the shard of the one seed prefers the token of the other.
func score(shard, token uint64) uint64 { return mix(shard ^ token) }

// seedOf returns 64 bits that look random and depend on every byte of the name.
func seedOf(name string) uint64 {
	sum := sha256.Sum256([]byte(scores + "/" + name))
	return binary.BigEndian.Uint64(sum[:8])
}

// tokenSeed returns 64 bits that look random and differ for each token.
func tokenSeed(token int) uint64 { return mix(uint64(token+1) * 0x9e3779b97f4a7c15) }

// mix permutes the 64-bit numbers so that each bit of the result depends on every bit of z: the output function of
// SplitMix64 (Steele, Lea and Flood 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
