package registration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/certs"
	"github.com/clusterring/clusterring/services/internal/clusterring"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// errNoBundle reports that there is nothing yet for the API server to trust.
var errNoBundle = errors.New("there is no CA bundle yet for API servers to verify the webhook with; see the logs of " +
	"the assigner")

// errNotInjected reports that cert-manager has not filled in the bundle. When it does, the configuration changes, which
// calls the reconciler.
var errNotInjected = errors.New("cert-manager has not yet written the CA bundle into the webhook configuration, so " +
	"API servers cannot call the assigner: " +
	"see the logs of its cainjector, and whether the Certificate of --cert-manager-inject-ca-from exists and is ready")

const (
	kindConfiguration = "MutatingWebhookConfiguration"
	// nowAndThen follows what others keep changing.
	nowAndThen = "; the assigner restores it once a minute at most"
)

// Reconciler maintains the webhook configuration of every ring. Its fields must be set.
type Reconciler struct {
	// Client writes, and reads from a cache.
	Client client.Client
	// Live reads without a cache.
	Live client.Reader
	// Resources determines what to register; Bundle and Target determine how.
	Resources *resources.Resolver
	Bundle    certs.Source
	Target    Target
	// Status writes the ring's condition.
	Status clusterring.StatusWriter
	// Reach finds out whether API servers reach the webhook.
	Reach *Reach
	// Restores paces what the reconciler restores.
	Restores *kit.Restores

	sets    sync.Map  // resolved, by the name of the ring
	secrets sync.Map  // of the paths, by the name of the ring, as string
	started time.Time // set when the controller starts
}

// Reconcile registers one ring, or removes its registration.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	ring := &v1alpha1.ClusterRing{}
	if err := r.Client.Get(ctx, req.NamespacedName, ring); apierrors.IsNotFound(err) {
		r.sets.Delete(req.Name)

		return kit.Later(r.remove(ctx, req.Name), r.unfence(ctx, req.Name))
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("read ring %s: %w", req.Name, err)
	}

	if holder, err := clusterring.FindOlder(ctx, r.Client, ring); err != nil || holder != "" {
		return kit.Later(err, r.refuse(ctx, ring, holder))
	}

	if err := r.Resources.Await(ctx); err != nil {
		return reconcile.Result{}, fmt.Errorf("determine the resources of ring %s: %w", req.Name, err)
	}

	set, _ := r.resolve(ring)
	webhook, again, err := r.webhook(ctx, ring, set)

	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: catchUp}, nil // the cache was behind, which is no state of the ring
	case errors.Is(err, errNoBundle) && r.starting():
		return reconcile.Result{RequeueAfter: bundlePatience}, nil // or earlier, once there is one
	case (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) &&
		(r.starting() || r.Status.Clock.Since(ring.CreationTimestamp.Time).Abs() < listPatience):
		// The leasemonitor lists the ring for the admission policies about now. The write is invalid while there is no list.
		return reconcile.Result{RequeueAfter: catchUp}, nil
	}

	fence, fenceErr := r.fenced(ctx, ring, set)
	if apierrors.IsConflict(fenceErr) {
		return reconcile.Result{RequeueAfter: catchUp}, err
	}

	result, err := kit.Later(err, fenceErr, r.report(ctx, ring, webhook, fence))
	_, until := r.Restores.Lately(contract.WebhookConfigurationName(ring.Name)) // the condition says so until then
	result.RequeueAfter = kit.Sooner(result.RequeueAfter, kit.Sooner(again, until))

	return result, err
}

// refuse removes the registration of a ring whose label another ring uses, and reports that. An empty holder is none.
func (r *Reconciler) refuse(ctx context.Context, ring *v1alpha1.ClusterRing, holder string) error {
	if holder == "" {
		return nil
	}

	err := errors.Join(r.remove(ctx, ring.Name), r.unfence(ctx, ring.Name))
	part := clusterring.StatusPart{Conditions: []metav1.Condition{
		clusterring.LabelInUseCondition(v1alpha1.ConditionWebhookRegistered, ring, holder),
	}}

	if ring.Spec.Fence != nil {
		part.Conditions = append(part.Conditions, clusterring.LabelInUseCondition(v1alpha1.ConditionFenced, ring, holder))
	}

	return errors.Join(err, r.Status.Write(ctx, ring, part))
}

// webhook brings the ring's webhook into the state that it should have, and returns the condition about it, also with
// an error, and when to look again; 0 for never.
func (r *Reconciler) webhook(
	ctx context.Context, ring *v1alpha1.ClusterRing, set *resources.Set,
) (metav1.Condition, time.Duration, error) {
	c := metav1.Condition{Type: v1alpha1.ConditionWebhookRegistered, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonRegistrationFailed}

	embedded := ring.Spec.Sharder == v1alpha1.SharderEmbedded

	var (
		note string
		err  error
	)

	if ring.DeletionTimestamp.IsZero() && !embedded {
		if _, err := ring.Spec.ObjectRequirements(); err != nil {
			c.Message = err.Error()

			return c, 0, nil //nolint:nilerr // what is registered stays
		}

		note, err = r.register(ctx, ring, set)
	} else {
		err = r.remove(ctx, ring.Name)
	}

	switch {
	case errors.Is(err, errNotInjected):
		c.Message = err.Error()

		return c, 0, nil
	case errors.As(err, new(*kit.ContestedError)):
		c.Reason, c.Message = v1alpha1.ReasonChangedByOthers, err.Error()+nowAndThen
	case err != nil:
		c.Message = err.Error()
	case embedded:
		c.Reason, c.Message = v1alpha1.ReasonEmbedded,
			"the ring uses no webhook, because spec.sharder is Embedded: one of its shards assigns new objects"
	case !ring.DeletionTimestamp.IsZero():
		c.Reason, c.Message = v1alpha1.ReasonDeleting, "the ring is being deleted: its webhook has been removed"
	case len(set.Missing()) > 0:
		c.Reason, c.Message = v1alpha1.ReasonResourcesMissing, resources.Message(set.Missing())
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonRegistered
		c.Message = "the API server asks the assigner about new objects of the ring" + note
	}

	if err != nil || embedded || !ring.DeletionTimestamp.IsZero() {
		return c, 0, err
	}

	message, again := r.Reach.look(ctx, ring)
	if message != "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonCallsNotAnswered, message
	}

	return c, again, nil
}

// starting reports whether other services may be starting, too: the bundle, or the list of rings for the admission
// policies, may still be on its way.
func (r *Reconciler) starting() bool { return r.Status.Clock.Since(r.started) < bundlePatience }

// report writes the assigner's part of the ring's status.
func (r *Reconciler) report(
	ctx context.Context, ring *v1alpha1.ClusterRing, webhook metav1.Condition, fence *metav1.Condition,
) error {
	part := clusterring.StatusPart{ShardLabel: ring.LabelKeys().Shard, Conditions: []metav1.Condition{webhook}}
	if fence != nil {
		part.Conditions = append(part.Conditions, *fence)
	}

	return r.Status.Write(ctx, ring, part)
}

// register writes the ring's configuration if it is not as it should be. It returns what people should know about it
// although it is.
func (r *Reconciler) register(
	ctx context.Context, ring *v1alpha1.ClusterRing, set *resources.Set,
) (note string, err error) {
	have := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := r.read(ctx, kindConfiguration, contract.WebhookConfigurationName(ring.Name), have); err != nil {
		return "", err
	}

	want := Configuration(ring, set, r.Target, r.secretOf(ring.Name, have))

	if r.Target.InjectCAFrom == "" {
		bundle := r.Bundle.Bundle()
		if len(bundle) == 0 {
			return "", errNoBundle
		}

		for i := range want.Webhooks {
			want.Webhooks[i].ClientConfig.CABundle = bundle
		}
	}

	next := merge(have, want, r.Restores.Same(want.Name, want))
	create := func() error { return r.Client.Create(ctx, next, client.FieldOwner(r.Status.Owner)) }

	if err := r.restore(ctx, wanted{kindConfiguration, want, have, next, create}); err != nil {
		return "", err
	}

	return r.note(next, want), r.injected(next)
}

// read reads an object of a ring, if it exists. One without the ring's label is not in the cache.
func (r *Reconciler) read(ctx context.Context, kind, name string, into client.Object) error {
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, into)
	if apierrors.IsNotFound(err) {
		err = r.Live.Get(ctx, client.ObjectKey{Name: name}, into)
	}

	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read %s %s: %w", kind, name, err)
	}

	return nil
}

// wanted is an object as the ring wants it. have is the one that exists, without a name if none does, and next is what
// it becomes.
type wanted struct {
	kind               string
	object, have, next client.Object
	create             func() error
}

// restore brings an object into the state that it should have, if it is not in that state, or creates it.
func (r *Reconciler) restore(ctx context.Context, w wanted) error {
	if equality.Semantic.DeepEqual(w.have, w.next) {
		return nil
	}

	name := w.object.GetName()
	verb, write, contested := "create", w.create, "somebody keeps deleting "+w.kind+" "+name

	if w.have.GetName() != "" {
		who, what := kit.Changed(w.have, w.next, w.kind, r.Status.Owner)
		verb, contested = "update", who+" keeps changing "+what
		write = func() error { return r.Client.Update(ctx, w.next, client.FieldOwner(r.Status.Owner)) }
	}

	return r.Restores.Write(name, w.object, contested, func() error {
		if err := write(); err != nil {
			return fmt.Errorf("%s %s %s: %w", verb, w.kind, name, err)
		}

		log.FromContext(ctx).Info("Object written", "verb", verb, "kind", w.kind, "name", name)

		return nil
	})
}

// delete deletes an object that has not changed since it was read.
func (r *Reconciler) delete(ctx context.Context, kind string, obj client.Object) error {
	err := r.Restores.Write(obj.GetName(), nil, "somebody keeps creating "+kind+" "+obj.GetName(), func() error {
		return r.Client.Delete(ctx, obj, client.Preconditions{UID: new(obj.GetUID()),
			ResourceVersion: new(obj.GetResourceVersion())})
	})

	switch {
	case errors.As(err, new(*kit.ContestedError)):
		return err
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("delete %s %s: %w", kind, obj.GetName(), err)
	case err == nil:
		log.FromContext(ctx).Info(kind+" removed", "name", obj.GetName())
	}

	return nil
}

// note says what others have changed in the configuration, if it stays, and what they have changed again and again.
func (r *Reconciler) note(have, want *admissionregistrationv1.MutatingWebhookConfiguration) string {
	var note string

	if what, _ := r.Restores.Lately(want.Name); what != "" {
		note = "; " + what + ", which has been restored"
	}

	ours := have.DeepCopy()
	for i := range ours.Webhooks {
		ours.Webhooks[i].NamespaceSelector = want.Webhooks[i].NamespaceSelector
		ours.Webhooks[i].ObjectSelector, ours.Webhooks[i].MatchConditions = want.Webhooks[i].ObjectSelector,
			want.Webhooks[i].MatchConditions
	}

	if !equality.Semantic.DeepEqual(have, ours) {
		who, what := kit.Changed(have, ours, kindConfiguration, r.Status.Owner)
		note += "; " + who + " has narrowed " + what +
			": objects that it excludes get their shards from the rebalancer, seconds later"
	}

	return note
}

// injected returns an error if cert-manager has to fill in the bundle, and has not done so.
func (r *Reconciler) injected(c *admissionregistrationv1.MutatingWebhookConfiguration) error {
	for i := range c.Webhooks {
		if r.Target.InjectCAFrom != "" && len(c.Webhooks[i].ClientConfig.CABundle) == 0 {
			return errNotInjected
		}
	}

	return nil
}

// remove deletes every configuration that carries the label of a ring which is gone.
func (r *Reconciler) remove(ctx context.Context, ring string) error {
	r.Reach.forget(ring)
	r.secrets.Delete(ring)

	list := &admissionregistrationv1.MutatingWebhookConfigurationList{}
	if err := r.Client.List(ctx, list, client.MatchingLabels{contract.LabelClusterRing: ring}); err != nil {
		return fmt.Errorf("list webhook configurations of ring %s: %w", ring, err)
	}

	var errs []error

	for i := range list.Items {
		// One that has changed meanwhile may carry its right label again; if not, its event leads here once more.
		if err := r.delete(ctx, kindConfiguration, &list.Items[i]); !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// catchUp is how long the cache gets to bring what somebody else has written meanwhile.
const catchUp = 50 * time.Millisecond

// bundlePatience is how long after its start a leader waits for the bundle, and for the list of rings, before it calls
// that a failure.
const bundlePatience = 10 * time.Second

// concurrency is how many rings are looked after at a time.
const concurrency = 20

// listPatience is how long admission policies may not know a new ring before that is a failure.
const listPatience = 5 * time.Second

// SetupWithManager adds the reconciler to a manager. It runs only in the leader.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	err := builder.ControllerManagedBy(mgr).
		Named("registration").
		For(&v1alpha1.ClusterRing{}, builder.WithPredicates(clusterring.SpecChanged)).
		Watches(&v1alpha1.ClusterRing{}, clusterring.Rivals(r.Client)).
		Watches(&admissionregistrationv1.MutatingWebhookConfiguration{},
			handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		Watches(&admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
			handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		Watches(&v1alpha1.PolicyParameter{}, handler.EnqueueRequestsFromMapFunc(clusterring.ByLabel)).
		Watches(&admissionregistrationv1.ValidatingAdmissionPolicy{}, handler.EnqueueRequestsFromMapFunc(r.allRings)).
		WatchesRawSource(clusterring.Source(r.Client, r.changes)).
		WithOptions(controller.Options{
			RateLimiter: kit.RateLimiter[reconcile.Request](),
			// Each ring may wait for a probe that is not answered.
			MaxConcurrentReconciles: concurrency,
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("register webhooks: %w", err)
	}

	return nil
}

// resolved are the resources of a ring as of a generation and a revision of what the API server serves.
type resolved struct {
	uid                  types.UID
	generation, revision int64
	set                  *resources.Set
}

// resolve returns the resources of a ring, and whether they differ from the last ones. It resolves them again only when
// something else is served, because the resolver asks the API server more often while somebody wants a resource that is
// missing.
func (r *Reconciler) resolve(ring *v1alpha1.ClusterRing) (set *resources.Set, differ bool) {
	found, _ := r.sets.Load(ring.Name)
	last, _ := found.(resolved)
	now := resolved{ring.UID, ring.Generation, r.Resources.Revision(), last.set}

	if now == last {
		return last.set, false
	}

	now.set = r.Resources.Resolve(ring.Spec)
	r.sets.Store(ring.Name, now)

	return now.set, last.set == nil || !now.set.Equal(last.set) ||
		resources.Message(now.set.Missing()) != resources.Message(last.set.Missing())
}

// changes requests the rings of which something else is served than before, and all rings when the bundle has changed.
func (r *Reconciler) changes(ctx context.Context, one func(ring string), all func()) error {
	r.started = r.Status.Clock.Now()

	r.Resources.Subscribe(func() {
		rings := &v1alpha1.ClusterRingList{}
		if err := r.Client.List(ctx, rings); err != nil {
			all()
			return
		}

		for i := range rings.Items {
			if _, differ := r.resolve(&rings.Items[i]); differ {
				one(rings.Items[i].Name)
			}
		}
	})
	r.Bundle.Subscribe(all)

	return nil
}

// allRings maps what concerns all rings to all rings.
func (r *Reconciler) allRings(ctx context.Context, _ client.Object) []reconcile.Request {
	return clusterring.Requests(ctx, r.Client)
}

// merge returns the configuration as it should be. Labels and annotations that others have added stay; so does a bundle
// that is not ours to fill in.
//
// If the assigner has written what it wants before, what others have added to selectors and match conditions stays,
// too: they can only exclude objects, which get their shards from the rebalancer. Managed Kubernetes excludes its own
// namespaces so. Otherwise, what was added is dropped, because it may come from what the ring was before. Others then
// add theirs again.
func merge(
	have, want *admissionregistrationv1.MutatingWebhookConfiguration, again bool,
) *admissionregistrationv1.MutatingWebhookConfiguration {
	next := have.DeepCopy()
	next.Name, next.OwnerReferences = want.Name, want.OwnerReferences
	next.Webhooks = want.DeepCopy().Webhooks
	next.Labels = labels.Merge(have.Labels, want.Labels)

	_, inject := want.Annotations[annotationInjectCA]
	if inject {
		next.Annotations = labels.Merge(have.Annotations, want.Annotations)
	} else {
		delete(next.Annotations, annotationInjectCA)
	}

	for i := range next.Webhooks {
		w := &next.Webhooks[i]

		j := slices.IndexFunc(have.Webhooks, func(h admissionregistrationv1.MutatingWebhook) bool { return h.Name == w.Name })
		if j < 0 {
			continue
		}

		h := have.Webhooks[j].DeepCopy()
		if inject {
			w.ClientConfig.CABundle = h.ClientConfig.CABundle
		}

		if again {
			w.NamespaceSelector = narrowed(h.NamespaceSelector, w.NamespaceSelector)
			w.ObjectSelector = narrowed(h.ObjectSelector, w.ObjectSelector)
			kept := slices.DeleteFunc(h.MatchConditions, func(c admissionregistrationv1.MatchCondition) bool {
				return slices.ContainsFunc(w.MatchConditions, // names are unique
					func(ours admissionregistrationv1.MatchCondition) bool { return ours.Name == c.Name && ours != c })
			})
			w.MatchConditions = slices.Concat(kept, slices.DeleteFunc(w.MatchConditions,
				func(ours admissionregistrationv1.MatchCondition) bool { return slices.Contains(kept, ours) }))
		}
	}

	return next
}

// narrowed returns a selector with the requirements of both.
func narrowed(have, want *metav1.LabelSelector) *metav1.LabelSelector {
	if have == nil || want == nil {
		return want
	}

	missing := slices.DeleteFunc(slices.Clone(want.MatchExpressions), func(w metav1.LabelSelectorRequirement) bool {
		return slices.ContainsFunc(have.MatchExpressions,
			func(h metav1.LabelSelectorRequirement) bool { return equality.Semantic.DeepEqual(h, w) })
	})

	return &metav1.LabelSelector{
		MatchLabels:      labels.Merge(have.MatchLabels, want.MatchLabels),
		MatchExpressions: slices.Concat(have.MatchExpressions, missing),
	}
}

// fenced brings the ring's fence into the state that it should have, and returns the condition about it, also with an
// error; nil if there is nothing to report. A ring that is being deleted keeps its fence.
func (r *Reconciler) fenced(
	ctx context.Context, ring *v1alpha1.ClusterRing, set *resources.Set,
) (*metav1.Condition, error) {
	problem, err := r.fence(ctx, ring, set)
	if ring.Spec.Fence == nil {
		return nil, err
	}

	c := &metav1.Condition{Type: v1alpha1.ConditionFenced, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonFenceFailed, Message: problem}

	switch {
	case errors.As(err, new(*kit.ContestedError)):
		c.Message = err.Error() + nowAndThen
	case err != nil:
		c.Message = err.Error()
	case problem != "":
	case ring.Spec.Fence.Mode == v1alpha1.FenceOff:
		c.Reason, c.Message = v1alpha1.ReasonFenceOff,
			"the API server allows shards to write all objects, because spec.fence.mode is Off"
	case ring.Spec.Fence.Mode == v1alpha1.FenceAudit:
		c.Reason = v1alpha1.ReasonFenceAudited
		c.Message = "the API server reports writes of shards to objects of other shards, and allows them, because " +
			"spec.fence.mode is Audit" + unbound(ring)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonFenceEnforced
		c.Message = "the API server refuses writes of shards to objects of other shards" + unbound(ring)
	}

	return c, err
}

// unbound adds what a ring that accepts all tokens has to know before its fence is enforced.
func unbound(ring *v1alpha1.ClusterRing) string {
	if ring.Annotations[contract.AnnotationUnboundShards] != "true" {
		return ""
	}

	return fmt.Sprintf("; annotation %s lets shards hold their Leases with tokens that are bound to no Pod, but the "+
		"fence refuses all their writes to objects",
		contract.AnnotationUnboundShards)
}

// fence writes or removes the ring's binding. It returns why the fence cannot work; otherwise "".
func (r *Reconciler) fence(
	ctx context.Context, ring *v1alpha1.ClusterRing, set *resources.Set,
) (problem string, err error) {
	want := Fence(ring, set)
	if want == nil {
		if err := r.unfence(ctx, ring.Name); err != nil || ring.Spec.FenceMode() == v1alpha1.FenceOff {
			return "", err
		}

		return "the API server serves no resource of the ring", nil
	}

	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := r.Client.Get(ctx, client.ObjectKey{Name: contract.FencePolicyName}, policy); apierrors.IsNotFound(err) {
		problem = fmt.Sprintf("ValidatingAdmissionPolicy %s does not exist: install deploy/base/guard",
			contract.FencePolicyName)
	} else if err != nil {
		return "", fmt.Errorf("read ValidatingAdmissionPolicy %s: %w", contract.FencePolicyName, err)
	} else if problem, err = r.parameterProblem(ctx, ring); err != nil {
		return "", err
	}

	return problem, r.bind(ctx, want)
}

// parameterProblem returns why the fence does not know the ring; otherwise "".
func (r *Reconciler) parameterProblem(ctx context.Context, ring *v1alpha1.ClusterRing) (string, error) {
	parameter := &v1alpha1.PolicyParameter{}
	key := client.ObjectKey{Name: contract.FenceName(ring.Name)}

	err := r.Client.Get(ctx, key, parameter)
	want := parameter.DeepCopy()
	want.Data = clusterring.CorrectedFence(parameter, ring)

	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("PolicyParameter %s does not exist, without which the fence allows all writes: check that "+
			"leasemonitor runs, which creates it", key.Name), nil
	case err != nil:
		return "", fmt.Errorf("read PolicyParameter %s: %w", key.Name, err)
	case !maps.Equal(parameter.Data, want.Data):
		who, what := kit.Changed(parameter, want, "PolicyParameter", "leasemonitor")

		return fmt.Sprintf("PolicyParameter %s, which describes the ring to its fence, differs from the spec: check that "+
			"leasemonitor runs, which updates it, and whether %s keeps changing %s", key.Name, who, what), nil
	}

	return "", nil
}

// bind writes a binding if it is not as it should be. It creates one with server-side apply, because RBAC can restrict
// that by name.
func (r *Reconciler) bind(ctx context.Context, want *admissionregistrationv1.ValidatingAdmissionPolicyBinding) error {
	have := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
	if err := r.read(ctx, want.Kind, want.Name, have); err != nil {
		return err
	}

	next := have.DeepCopy()
	next.Name, next.OwnerReferences, next.Spec = want.Name, want.OwnerReferences, want.Spec
	next.Labels = labels.Merge(have.Labels, want.Labels)

	create := func() error {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(want)
		if err != nil {
			return err //nolint:wrapcheck // by restore
		}

		apply := client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: content})

		return r.Client.Apply(ctx, apply, client.FieldOwner(r.Status.Owner), client.ForceOwnership)
	}

	return permission(want.Name, r.restore(ctx, wanted{want.Kind, want, have, next, create}))
}

// permission adds to an error what an administrator can do about a permission that is missing.
func permission(binding string, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}

	return fmt.Errorf("%w: create a ClusterRole with the label %s=true that grants create, patch, update, and delete "+
		"on validatingadmissionpolicybindings with the name %s, as deploy/example does",
		err, contract.LabelAggregateToAssigner, binding)
}

// unfence removes the fence of the ring with the given name, if there is one.
func (r *Reconciler) unfence(ctx context.Context, ring string) error {
	b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}

	err := r.Client.Get(ctx, client.ObjectKey{Name: contract.FenceName(ring)}, b)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read ValidatingAdmissionPolicyBinding %s: %w", contract.FenceName(ring), err)
	}

	if b.Labels[contract.LabelClusterRing] != ring {
		return nil // there is none, or it is that of a ring with the same suffix
	}

	return permission(b.Name, r.delete(ctx, "ValidatingAdmissionPolicyBinding", b))
}
