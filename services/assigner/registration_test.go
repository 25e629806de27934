package assigner_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestRegistration(t *testing.T) {
	f := newFixture(t, "registration", "a")
	r := start(t, f.Plane)
	f.registered()

	want := f.configuration()

	t.Run("is of the contract", func(t *testing.T) {
		require.Equal(t, want.Name, "sharding-"+contract.RingSuffix(f.name))
		require.Equal(t, f.name, want.Labels["alpha.sharding.timebertt.dev/clusterring"])
		require.Equal(t, f.ring().UID, want.OwnerReferences[0].UID)
		require.Len(t, want.Webhooks, 3)
		w := sharder(want)
		require.Equal(t, "sharder.sharding.timebertt.dev", w.Name)
		require.Regexp(t, "^"+r.url+"/webhooks/sharder/clusterring/"+f.name+"/[0-9a-f]{32}$", *w.ClientConfig.URL)
		require.Len(t, w.Rules, 2)
	})

	t.Run("stays as it is while nothing changes", func(t *testing.T) {
		r.stop()
		r = launchAt(f.t, f.Plane, r.url[len("https://"):], "--webhook-url="+r.url)
		eventually(t, r.ready, "the assigner becomes ready")

		// That another ring is registered shows that this one has been looked at.
		other := newFixture(t, "registration-other", "x")
		other.registered()
		require.Equal(t, want.ResourceVersion, f.configuration().ResourceVersion)
	})

	restored := func() bool {
		c := f.configuration()
		return c != nil && c.Labels[contract.LabelClusterRing] == f.name && equalWebhooks(c, want)
	}

	// Few edits: the pauses between restores double.
	for what, change := range map[string]func(c *admissionregistrationv1.MutatingWebhookConfiguration){
		"its fields": func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			w := sharder(c)
			w.Rules, w.ClientConfig.CABundle, w.FailurePolicy = nil, nil, ptr.To(admissionregistrationv1.Fail)
		},
		"webhook and label": func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Webhooks, c.Labels = nil,
				nil
		},
		"what is not ours": func(c *admissionregistrationv1.MutatingWebhookConfiguration) {
			c.Labels[contract.LabelClusterRing] = "x"

			more := *sharder(c).DeepCopy()
			more.Name = "more.example.org"
			c.Webhooks = append(c.Webhooks, more)
		},
	} {
		t.Run("is restored after an edit of "+what, func(t *testing.T) {
			edited := f.configuration()
			change(edited)
			require.NoError(t, f.Client.Update(t.Context(), edited))
			eventually(t, restored, "the configuration is restored")
		})

		if t.Failed() {
			return
		}
	}

	t.Run("is restored after its deletion", func(t *testing.T) {
		require.NoError(t, f.Client.Delete(t.Context(), f.configuration()))
		eventually(t, restored, "the configuration is restored")
		f.asked()
	})

	t.Run("follows the ring", func(t *testing.T) {
		f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Resources[0].ControlledResources = nil })
		eventually(t, func() bool { return f.rules() == 1 }, "the rules follow")
		require.Len(t, sharder(f.configuration()).MatchConditions, 1)
	})
}

func equalWebhooks(a, b *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return equality.Semantic.DeepEqual(a.Webhooks, b.Webhooks)
}

func TestDeletedRings(t *testing.T) {
	f := newFixture(t, "deleted", "a")

	// A configuration of a ring that was deleted while no assigner ran. There is no garbage collector here.
	stale := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{
		Name:   contract.WebhookConfigurationName("long-gone"),
		Labels: map[string]string{contract.LabelClusterRing: "long-gone"},
	}}
	require.NoError(t, f.Client.Create(t.Context(), stale))

	foreign := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "foreign.example.org"},
	}
	require.NoError(t, f.Client.Create(t.Context(), foreign))
	t.Cleanup(func() { require.NoError(t, f.Client.Delete(context.WithoutCancel(t.Context()), foreign)) })

	start(t, f.Plane)
	f.registered()

	gone := func(c *admissionregistrationv1.MutatingWebhookConfiguration) func() bool {
		return func() bool {
			return client.IgnoreNotFound(f.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c.DeepCopy())) == nil &&
				f.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c.DeepCopy()) != nil
		}
	}

	eventually(t, gone(stale), "a left-over configuration is removed")
	require.False(t, gone(foreign)(), "others are left alone")

	t.Run("a ring that waits for its finalizer has no webhook", func(t *testing.T) {
		f.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = []string{contract.FinalizerRebalancer} })
		require.NoError(t, f.Client.Delete(t.Context(), f.ring()))
		eventually(t, func() bool { return f.configuration() == nil && f.reason() == "False Deleting" },
			"webhook removed, condition says so")
		require.NotContains(t, f.create(f.website("while-deleting")).GetLabels(), f.shardLabel())
	})

	t.Run("one that is made again is another", func(t *testing.T) {
		f.changeRing(func(r *v1alpha1.ClusterRing) { r.Finalizers = nil })
		eventually(t, func() bool { return count(t, f.name, "") == 0 }, "its metrics are gone")
		f.declare(v1alpha1.RingResource{Group: f.kind.Group, Resource: "websites"})
		f.registered()
		require.Equal(t, f.ring().UID, f.configuration().OwnerReferences[0].UID)
	})

	t.Run("a ring without a finalizer goes at once", func(t *testing.T) {
		require.NoError(t, f.Client.Delete(t.Context(), f.ring()))
		eventually(t, func() bool { return f.configuration() == nil }, "webhook removed")
	})
}

func TestMissingResource(t *testing.T) {
	f := running(t, "missing", "a")

	message := func() string { return f.ring().Status.Conditions[0].Message }

	// In another version of a group that discovery knows already.
	shop := schema.GroupVersionKind{Group: f.kind.Group, Version: "v2", Kind: "Webshop"}
	f.changeRing(func(r *v1alpha1.ClusterRing) {
		r.Spec.Resources = append(r.Spec.Resources, v1alpha1.RingResource{Group: shop.Group, Resource: "webshops"})
	})
	eventually(t, func() bool { return f.reason() == "False ResourcesMissing" },
		"the condition reports that a resource is missing")
	require.Contains(t, message(), "webshops."+shop.Group)
	require.NotContains(t, message(), "websites")

	t.Run("those that exist are registered", func(t *testing.T) {
		require.Equal(t, 2, f.rules())
		f.asked()
	})

	t.Run("it is registered as soon as it appears", func(t *testing.T) {
		f.serve(shop)
		eventually(t, func() bool { return f.rules() == 3 && f.reason() == "True Registered" },
			"all resources are registered")
		f.asked()

		open := func() string {
			w := f.website(unique("shop"))
			w.SetGroupVersionKind(shop)

			return f.create(w).GetLabels()[f.shardLabel()]
		}
		require.Empty(t, open(), "nobody has recorded yet that there may be labels to remove")

		f.record(f.ring().Spec.Resources...)
		eventually(t, func() bool { return open() == "a" }, "objects of the new resource get a shard")
	})
}

// TestResourceThatGoes deletes a custom resource whose ring does not change, and makes it again.
func TestResourceThatGoes(t *testing.T) {
	f := running(t, "goes", "a")
	require.Equal(t, 2, f.rules())

	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "websites." + f.kind.Group}}
	require.NoError(t, f.Client.Delete(t.Context(), crd))
	// It takes until the assigner looks again, and before that until the API server has removed what it served.
	require.Eventually(t, func() bool { return f.reason() == "False ResourcesMissing" && f.rules() == 1 }, 3*patience,
		interval,
		"the condition reports that a resource is missing")
	require.Contains(t, f.ring().Status.Conditions[0].Message, crd.Name)

	f.serve(f.kind)
	f.registered()
	require.Equal(t, 2, f.rules())
}

// registration returns the message of the condition WebhookRegistered.
func (f *fixture) registration() string {
	c := apimeta.FindStatusCondition(f.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	if c == nil {
		return ""
	}

	return c.Message
}

// meddle changes an object of the ring whenever somebody has written it, as a controller with a watch does, until stop
// is called. It returns how many times it did.
func meddle[O client.Object](f *fixture, list client.ObjectList, change func(O) bool) (stop func() int64) {
	f.t.Helper()

	c, err := client.NewWithWatch(f.Config, client.Options{Scheme: f.Client.Scheme()})
	require.NoError(f.t, err)

	ctx, cancel := context.WithCancel(f.t.Context())
	selector := &client.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{contract.LabelClusterRing: f.name})}

	w, err := c.Watch(ctx, list, selector)
	require.NoError(f.t, err)

	var times atomic.Int64

	done := make(chan struct{})

	go func() {
		defer close(done)

		for e := range w.ResultChan() {
			if o, ok := e.Object.(O); ok && change(o) && c.Update(ctx, o, client.FieldOwner("meddler")) == nil {
				times.Add(1)
			}
		}
	}()

	f.t.Cleanup(func() { f.t.Logf("changed %d times", times.Load()) })

	return func() int64 {
		cancel()
		w.Stop()
		<-done

		return times.Load()
	}
}

// TestNarrowedByAnEnforcer lets another controller exclude namespaces from the webhook, as managed Kubernetes does.
func TestNarrowedByAnEnforcer(t *testing.T) {
	f := running(t, "narrowed", "a")
	require.Equal(t, "true", f.configuration().Labels["admissions.enforcer/disabled"],
		"the enforcer of AKS is asked to leave it alone")

	added := []metav1.LabelSelectorRequirement{
		{Key: "control-plane", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"true"}},
		{Key: "kubernetes.azure.com/managedby", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"aks"}},
	}
	narrow := func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
		s := sharder(c).NamespaceSelector
		if len(s.MatchExpressions) > 0 {
			return false
		}

		s.MatchExpressions = append(s.MatchExpressions, added...)

		return true
	}
	stop := meddle(f, &admissionregistrationv1.MutatingWebhookConfigurationList{}, narrow)

	eventually(t, func() bool { return strings.Contains(f.registration(), "meddler") },
		"the ring says who has narrowed it")
	require.Contains(t, f.registration(), "namespaceSelector")
	require.Equal(t, "True Registered", f.reason())

	// A ring that changes is registered anew, without what others have added, because its own spec may have said so
	// before.
	f.changeRing(func(r *v1alpha1.ClusterRing) { r.Spec.Resources[0].ControlledResources = nil })
	eventually(t, func() bool {
		return f.rules() == 1 && len(sharder(f.configuration()).NamespaceSelector.MatchExpressions) == 2
	}, "the rules follow")
	eventually(t, func() bool { return strings.Contains(f.registration(), "meddler") }, "the ring says so again")

	times := stop()
	require.LessOrEqual(t, times, int64(3))
	require.LessOrEqual(t, f.configuration().Generation, int64(2+3))
	require.Equal(t, added, sharder(f.configuration()).NamespaceSelector.MatchExpressions)
	require.NotEmpty(t, sharder(f.configuration()).NamespaceSelector.MatchLabels)
	f.asked()
}

// TestContestedWebhook lets another controller break the webhook again and again.
func TestContestedWebhook(t *testing.T) {
	f := running(t, "contested", "a")

	stop := meddle(f, &admissionregistrationv1.MutatingWebhookConfigurationList{},
		func(c *admissionregistrationv1.MutatingWebhookConfiguration) bool {
			sharder(c).TimeoutSeconds = new(int32(7))
			sharder(c).Rules[0].Operations = sharder(c).Rules[0].Operations[:1]

			return true
		})

	eventually(t, func() bool { return f.reason() == "False ChangedByOthers" },
		"the ring reports that others change its webhook")
	require.Contains(t, f.registration(), "meddler")
	require.Contains(t, f.registration(), "webhooks["+contract.WebhookName+"].rules")
	require.Contains(t, f.registration(), "webhooks["+contract.WebhookName+"].timeoutSeconds")
	require.LessOrEqual(t, stop(), int64(8), "nobody writes all the time")

	f.registered()
	require.Contains(t, f.registration(), "meddler", "it is good to know afterwards")
	require.NotEqual(t, int32(7), *sharder(f.configuration()).TimeoutSeconds)
}

// TestContestedFence lets another controller weaken the fence again and again.
func TestContestedFence(t *testing.T) {
	f := newFenced(t, "fence-contested", v1alpha1.FenceEnforce)
	start(t, f.Plane)
	f.registered()
	f.reports("True Enforced")

	stop := meddle(f.fixture, &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
		func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) bool {
			b.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}

			return true
		})

	f.reports("False FenceFailed meddler keeps changing spec.validationActions of ValidatingAdmissionPolicyBinding")
	require.LessOrEqual(t, stop(), int64(8), "nobody writes all the time")
	f.reports("True Enforced")
}

// firewall stands between API servers and the assigner. While it is locked, bytes vanish, as packets that a firewall
// drops.
type firewall struct {
	address, behind string

	sync.RWMutex
}

func newFirewall(t *testing.T) *firewall {
	t.Helper()

	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	f := &firewall{address: l.Addr().String(), behind: localplane.FreeAddress(t)}
	t.Cleanup(func() { _ = l.Close() })

	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}

			go f.serve(conn)
		}
	}()

	return f
}

func (f *firewall) serve(outside net.Conn) {
	defer func() { _ = outside.Close() }()

	inside, err := net.Dial("tcp", f.behind)
	if err != nil {
		return
	}

	defer func() { _ = inside.Close() }()

	go func() {
		_, _ = io.Copy(outside, inside)
		_ = outside.Close()
	}()

	_, _ = io.Copy(inside, passing{outside, f})
}

// passing is what comes from outside, which stays in the firewall while that is locked.
type passing struct {
	io.Reader
	firewall *firewall
}

func (p passing) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)

	p.firewall.RLock()
	defer p.firewall.RUnlock()

	return n, err
}

// arrives returns the metric of a ring: whether calls arrive.
func arrives(t *testing.T, ring string) float64 {
	t.Helper()

	return metric(t, "clusterring_assigner_calls_arrive",
		func(labels map[string]string) bool { return labels["ring"] == ring })
}

func TestCallsThatDoNotArriveAreReported(t *testing.T) {
	within := func(condition func() bool, what string) {
		t.Helper()
		require.Eventually(t, condition, time.Minute, interval, what)
	}

	f := newFixture(t, "unreached", "a")
	wall := newFirewall(t)
	r := launchAt(t, f.Plane, wall.behind, "--webhook-url=https://"+wall.address, "--webhook-timeout=1s")
	eventually(t, r.ready, "the assigner becomes ready")
	f.registered()
	within(func() bool { return arrives(t, f.name) == 1 }, "the metric shows that calls arrive")

	// Nobody writes an object of the ring.
	asked := count(t, f.name, "")

	wall.Lock()

	open := sync.OnceFunc(wall.Unlock)
	defer open()

	within(func() bool { return f.reason() == "False CallsNotAnswered" },
		"the condition shows that calls do not arrive")

	message := apimeta.FindStatusCondition(f.ring().Status.Conditions, v1alpha1.ConditionWebhookRegistered).Message
	require.Contains(t, message, "context deadline exceeded")
	require.Contains(t, message, "Allow API servers to connect to https://"+wall.address)
	require.Zero(t, arrives(t, f.name))
	require.Equal(t, asked, count(t, f.name, ""))

	start := clock.RealClock{}.Now()
	f.create(f.website("waits"))
	require.Less(t, clock.RealClock{}.Since(start), 3*time.Second,
		"a write waits a second for an assigner that does not answer")

	open()
	within(func() bool { return f.reason() == "True Registered" }, "the condition shows that calls arrive again")
	require.InDelta(t, 1, arrives(t, f.name), 0)
}

func TestNineRingsDelayAWriteLessThanTenSeconds(t *testing.T) {
	f := newFixture(t, "overlap-0", "a")
	wall := newFirewall(t)
	r := launchAt(t, f.Plane, wall.behind, "--webhook-url=https://"+wall.address, "--webhook-timeout=1s")
	eventually(t, r.ready, "the assigner becomes ready")
	f.registered()

	for i := 1; i < 9; i++ {
		other := *f
		other.name = fmt.Sprintf("overlap-%d", i)
		other.join("a")
		other.declare(v1alpha1.RingResource{Group: f.kind.Group, Resource: "websites"})
		other.registered()
	}

	wall.Lock()
	defer wall.Unlock()

	start := clock.RealClock{}.Now()
	f.create(f.website("waits"))
	require.Less(t, clock.RealClock{}.Since(start), 10*time.Second)
}
