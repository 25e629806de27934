package shard

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

func TestAStandby(t *testing.T) {
	f := newFixture(t)
	holding := f.claim(f.slotOptions("pod-a", 1)).got()
	f.runs(holding, ignore)

	f.probes = "127.0.0.1:" + freePort(f)
	options := f.slotOptions("pod-b", 1)
	options.PodUID = "4c3a7f6e-1111-2222-3333-444455556666"
	s, err := New(options)
	require.NoError(t, err)

	p := f.runs(s, ignore)
	f.eventually("it is alive", answers(f.probes, "/readyz/ping", http.StatusOK))
	f.eventually("it could take over", answers(f.probes, "/readyz", http.StatusOK))

	lease := f.standby("pod-b")
	require.NotNil(t, lease)
	require.NotContains(t, lease.Labels, contract.LabelClusterRing, "it is no shard")
	require.Equal(t, []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "pod-b", UID: options.PodUID}}, lease.OwnerReferences)

	require.NoError(t, p.stop())
	require.Nil(t, f.standby("pod-b"))
}

// answers returns a condition: whether the probe is answered with this code.
func answers(address, path string, code int) func() bool {
	return func() bool {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return false
		}

		defer resp.Body.Close()

		return resp.StatusCode == code
	}
}

// A rolling update would otherwise replace all Pods by some that cannot work, for example because of a wrong shard label or a missing permission.
func TestAPodThatMayNotTakeASlotIsNotReady(t *testing.T) {
	f := newFixture(t)
	held := f.claim(f.slotOptions("pod-a", 1)).got()
	f.overwrite(held, func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("") })

	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "shard"}}
	allow := func(verbs ...string) {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: verbs})
		require.NoError(t, f.admin.Update(t.Context(), role))
	}
	f.grant(role)
	allow("get", "list", "watch", "create", "delete")

	f.config.Impersonate.UserName = f.namespace

	var refused atomic.Int32

	f.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if err == nil && req.Method == http.MethodPut && resp.StatusCode == http.StatusForbidden && strings.HasSuffix(req.URL.Path, held.Name()) {
				refused.Add(1)
			}

			return resp, err
		})
	})

	c := f.claim(f.slotOptions("pod-b", 1))
	f.eventually("it has tried again", func() bool { return refused.Load() > 1 })
	require.False(t, c.standsBy())

	allow("update")
	require.Equal(t, held.Name(), c.got().Name())
}

// A Pod may wait for slots of several rings, and Leases have names of at most 253 characters.
func TestEveryStandbyHasALeaseOfItsOwn(t *testing.T) {
	long := strings.Repeat("x", 250)
	require.NotEqual(t, standbyName("a", "pod"), standbyName("b", "pod"))
	require.NotEqual(t, standbyName("a", long), standbyName("b", long))
	require.Less(t, len(standbyName("a", long)), 253)
}

// TestAStandbyRenewsItsLease has a clock that is ahead.
func TestAStandbyRenewsItsLease(t *testing.T) {
	f := newFixture(t)
	options, err := f.slotOptions("pod-b", 1).complete(nil, "")
	require.NoError(t, err)
	client, err := options.leases(f.config, options.RenewDeadline)
	require.NoError(t, err)

	clk := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	begin := func() *standby {
		return &standby{options: options, client: client, clock: clk, log: logr.Discard()}
	}
	awaited := func(slot int) bool {
		l := &lock{leases: client, options: options, name: contract.SlotName(f.ring, slot), term: &term{clock: clk}}

		return l.awaited(t.Context(), logr.Discard())
	}
	s := begin()
	require.False(t, awaited(0))
	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
	require.True(t, awaited(0))

	require.False(t, awaited(1), "it would not take that slot")

	first := f.standby("pod-b").ResourceVersion

	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
	require.Equal(t, first, f.standby("pod-b").ResourceVersion, "it is not due")
	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0), contract.SlotName(f.ring, 1)})
	require.True(t, awaited(1), "it takes more slots now")
	clk.SetTime(clk.Now().Add(contract.StandbyDuration))
	require.False(t, awaited(0), "it may be gone")
	s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
	require.True(t, awaited(0))

	// Somebody deletes it, and a predecessor in the same Pod has left one.
	for _, disturb := range []func(){
		func() { require.NoError(t, f.admin.Delete(t.Context(), f.standby("pod-b"))) },
		func() { s = begin() },
	} {
		disturb()
		clk.SetTime(clk.Now().Add(contract.StandbyDuration))
		s.renew(t.Context(), []string{contract.SlotName(f.ring, 0)})
		require.True(t, awaited(0))
	}

	s.leave()
	require.False(t, awaited(0))
}
