package clusterring

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gotest.tools/v3/golden"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// everything returns all rings that the decision can tell apart, with a description.
func everything() (rings []*v1alpha1.ClusterRing, texts []string) {
	own, elsewhere := Embedded("r", "here").Lease.String(), Embedded("r", "there").Lease.String()

	for _, deleting := range []bool{false, true} {
		for _, wanted := range []string{"", "here", "there"} {
			for _, finalizer := range []bool{true, false} {
				for _, said := range []*string{nil, new(contract.SharderNobody), &own, &elsewhere, new("made-up"), new("/"), new("")} {
					ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
					text := []string{"wanted " + wanted}

					if wanted != "" {
						ring.Spec.Sharder, ring.Spec.ShardNamespaces = v1alpha1.SharderEmbedded, []string{wanted}
					} else {
						text[0] = "wanted services"
					}

					if finalizer {
						ring.Finalizers = []string{contract.FinalizerRebalancer}

						text = append(text, "finalizer")
					}

					if said != nil {
						ring.Annotations = map[string]string{contract.AnnotationSharder: *said}
						text = append(text, fmt.Sprintf("annotation %q", *said))
					}

					if deleting {
						ring.DeletionTimestamp = new(metav1.NewTime(time.Unix(0, 0)))

						text = append(text, "deleting")
					}

					rings, texts = append(rings, ring), append(texts, strings.Join(text, ", "))
				}
			}
		}
	}

	return rings, texts
}

var sharders = map[string]Identity{"services": Services, "here": Embedded("r", "here"), "there": Embedded("r", "there")}

// TestNext compares the decision for every ring with the table in testdata, which is its specification.
func TestNext(t *testing.T) {
	var out strings.Builder

	rings, texts := everything()
	for i, ring := range rings {
		fmt.Fprintf(&out, "%-100s services: %-8s here: %-8s there: %s\n", texts[i],
			sharders["services"].Next(ring), sharders["here"].Next(ring), sharders["there"].Next(ring))
	}

	golden.Assert(t, out.String(), "next.txt")
}

// TestOneHolder: of all sharders, at most one works on a ring or gives it up, whatever the ring says. Only a ring
// without a holder is claimed, by one.
func TestOneHolder(t *testing.T) {
	rings, texts := everything()
	for i, ring := range rings {
		holders, claims := 0, 0

		for _, self := range sharders {
			switch self.Next(ring) {
			case Work, Release:
				holders++
			case Claim:
				claims++
			case Wait, Leave:
			}
		}

		require.LessOrEqual(t, holders+claims, 1, texts[i])

		_, held := HolderOf(ring)
		require.Equal(t, held, holders == 1, texts[i])
	}
}

// TestEveryRingReachesTheSharderThatItWants, in three steps at most, and keeps its finalizer on the way. One that is
// being deleted reaches somebody, unless it has no finalizer.
func TestEveryRingReachesTheSharderThatItWants(t *testing.T) {
	rings, texts := everything()
	for i, ring := range rings {
		had := len(ring.Finalizers) > 0

		for range 3 {
			for _, self := range sharders {
				switch self.Next(ring) {
				case Claim:
					self.Take(ring)
				case Release:
					GiveUp(ring)
				case Work, Wait, Leave:
				}
			}

			require.True(t, !had || len(ring.Finalizers) == 1, texts[i])
		}

		holder, held := HolderOf(ring)

		if ring.DeletionTimestamp.IsZero() {
			require.True(t, held && holder == WantedOf(ring), texts[i])
		} else {
			require.Equal(t, had, held, texts[i])
		}
	}
}
