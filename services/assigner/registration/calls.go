package registration

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
)

// API servers do not authenticate to webhooks. The path of a ring's webhook therefore ends with a secret, which only
// those know who may read webhook configurations. The configuration itself keeps it: the leader takes it from there,
// and all replicas answer only what was sent to the path of the ring's configuration. This needs no key that replicas
// share, whatever their certificates come from.
var secret = regexp.MustCompile(`^[0-9a-f]{32}$`)

// secretIn finds the secrets of paths in a text.
var secretIn = regexp.MustCompile("(" + contract.WebhookPathPrefix + "[^/]+/)[0-9a-f]{32}")

// withoutSecrets returns the text without the secrets of paths. API servers name the path of a webhook in errors.
func withoutSecrets(text string) string { return secretIn.ReplaceAllString(text, "$1…") }

// pathOf returns the path that a configuration sends API servers to; empty if it has no webhook of a ring.
func pathOf(c *admissionregistrationv1.MutatingWebhookConfiguration) string {
	if len(c.Webhooks) == 0 {
		return ""
	}

	switch to := c.Webhooks[0].ClientConfig; {
	case to.Service != nil && to.Service.Path != nil:
		return *to.Service.Path
	case to.URL != nil:
		if u, err := url.Parse(*to.URL); err == nil {
			return u.Path[max(strings.LastIndex(u.Path, contract.WebhookPathPrefix), 0):] // the base of the URL may have a path
		}
	}

	return ""
}

// secretOf returns the secret of a ring: that of its configuration, else the last one that was returned, else a new
// one. A configuration that is deleted or edited therefore gets the same one again.
func (r *Reconciler) secretOf(ring string, have *admissionregistrationv1.MutatingWebhookConfiguration) string {
	if found, ok := strings.CutPrefix(pathOf(have), contract.WebhookPath(ring)+"/"); ok && secret.MatchString(found) {
		r.secrets.Store(ring, found)
		return found
	}

	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails

	known, _ := r.secrets.LoadOrStore(ring, hex.EncodeToString(random))
	found, _ := known.(string)

	return found
}

// Registered returns a function that reports whether a path is that of the ring's webhook, by the configurations that
// the reader has, a cache. It takes the same time for every wrong path of the same length.
func Registered(configurations client.Reader) func(ctx context.Context, ring, path string) bool {
	return func(ctx context.Context, ring, path string) bool {
		c := &admissionregistrationv1.MutatingWebhookConfiguration{}
		name := client.ObjectKey{Name: contract.WebhookConfigurationName(ring)}
		err := configurations.Get(ctx, name, c, client.UnsafeDisableDeepCopy)

		return err == nil && subtle.ConstantTimeCompare([]byte(pathOf(c)), []byte(path)) == 1
	}
}

const (
	// lookEvery is the time between two looks at a ring whose calls arrive, and lookAgain after a call that was not
	// answered.
	lookEvery = 20 * time.Second
	lookAgain = 5 * time.Second
	// failingFor is how long calls must not be answered until that is reported: longer than an API server takes to load a
	// configuration, and than a replica that restarts stays in the Service.
	failingFor = 10 * time.Second
	// lookLimit is the time for one look. It is longer than any timeout of the webhook.
	lookLimit = 35 * time.Second
)

// Reach finds out whether API servers reach the webhook of a ring, also if nobody writes its objects. It is safe for
// concurrent use.
//
// It sends a write of the ring's status that changes nothing, as a dry run. A webhook for such writes alone sends the
// API server to the same address as all others. Some replica answers with a warning, which comes back with the answer
// of the API server. This webhook alone fails closed, because only then does the API server say why a call failed; the
// writes that it can refuse are dry runs.
//
// A count of calls against writes that others do would say nothing about a ring without writes.
type Reach struct {
	client  client.Client
	target  Target
	clock   clock.PassiveClock
	failing sync.Map // since when, by ring, as time.Time
}

// NewReach returns one of the target that has not looked yet. Its requests take the permission to patch the status of
// rings. It returns an error if no client can be made from the manager's configuration.
func NewReach(mgr manager.Manager, t Target, clk clock.PassiveClock) (*Reach, error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.WarningHandlerWithContext = arrival{}

	c, err := client.New(config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(),
		Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("create a client for dry runs: %w", err)
	}

	return &Reach{client: c, target: t, clock: clk}, nil
}

var arrivals = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "clusterring_assigner_calls_arrive",
	Help: "1 if calls of the API server for the ring arrive at an assigner, else 0. Only the leader has it.",
}, []string{"ring"})

// Collectors returns the metrics of the package for the registry of the service.
func Collectors() []prometheus.Collector { return []prometheus.Collector{arrivals} }

// look returns the message about calls that do not arrive, empty if they do or if it cannot tell, and when to look
// again. One call that fails turns no verdict, and neither does one that failed because of something else: until then,
// it returns what the ring's condition says.
func (r *Reach) look(ctx context.Context, ring *v1alpha1.ClusterRing) (message string, again time.Duration) {
	told := meta.FindStatusCondition(ring.Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	was := told != nil && told.Reason == v1alpha1.ReasonCallsNotAnswered
	unreached, known := r.call(ctx, ring.Name)

	switch {
	case !known && was:
		return told.Message, lookAgain
	case !known:
		return "", lookAgain
	case unreached == "":
		r.failing.Delete(ring.Name)
		arrivals.WithLabelValues(ring.Name).Set(1)

		return "", lookEvery
	}

	now := r.clock.Now()

	since, _ := r.failing.LoadOrStore(ring.Name, now)
	if first, _ := since.(time.Time); !was && now.Sub(first) < failingFor {
		return "", lookAgain
	}

	arrivals.WithLabelValues(ring.Name).Set(0)

	return r.target.unreached(unreached), lookAgain
}

// call has the API server call the webhook. It returns why the call did not arrive, empty if it did, and whether that
// is known.
func (r *Reach) call(ctx context.Context, ring string) (unreached string, known bool) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()

	var arrived bool

	obj := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: ring}}
	err := r.client.Status().Patch(context.WithValue(ctx, arrival{}, &arrived), obj,
		client.RawPatch(types.MergePatchType, []byte("{}")), client.DryRunAll)

	switch {
	case arrived: // what happened to the request afterwards is of no interest
		return "", true
	case err == nil:
		return "the API server does not call the webhook", true
	case strings.Contains(err.Error(), contract.ReachWebhookName):
		return withoutSecrets(err.Error()), true
	default:
		log.FromContext(ctx).V(1).Info("Whether calls of the API server arrive is not known", "err",
			withoutSecrets(err.Error()))

		return "", false
	}
}

// forget removes what is known about a ring without a webhook.
func (r *Reach) forget(ring string) {
	r.failing.Delete(ring)
	arrivals.DeleteLabelValues(ring)
}

// arrival takes note of the warning of an assigner. It is also the key of where to, a *bool, in the context of the
// request.
type arrival struct{}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (arrival) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	if arrived, ok := ctx.Value(arrival{}).(*bool); ok && text == admission.Arrived {
		*arrived = true
	}
}

// unreached returns the message about calls that do not arrive: why, and what to open.
func (t Target) unreached(reason string) string {
	to := t.URL
	if to == "" {
		to = fmt.Sprintf("port %d of Service %s/%s, which is TCP port %s of its Pods", ptr.Deref(t.Service.Port, 443),
			t.Service.Namespace, t.Service.Name, t.Port)
	}

	return fmt.Sprintf("calls of API servers do not arrive at the assigner: %s. Allow API servers to connect to %s, in "+
		"the firewall of the "+
		"control plane, NetworkPolicies, and the cluster network", strings.TrimSuffix(reason, "."), to)
}

// onDryRun returns the webhook that [Reach] asks for.
func onDryRun(ring *v1alpha1.ClusterRing, t Target, secret string) admissionregistrationv1.MutatingWebhook {
	w := webhook(ring, t, secret)
	w.Name = contract.ReachWebhookName
	w.Rules = []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{v1alpha1.GroupVersion.Group}, APIVersions: []string{"*"},
			Resources: []string{"clusterrings/status"},
			Scope:     ptr.To(admissionregistrationv1.ClusterScope),
		},
	}}
	w.FailurePolicy, w.ReinvocationPolicy = ptr.To(admissionregistrationv1.Fail),
		ptr.To(admissionregistrationv1.NeverReinvocationPolicy)
	w.NamespaceSelector, w.ObjectSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
	// The policy assigner in deploy/base/guard admits this webhook only with exactly the first of these expressions.
	w.MatchConditions = []admissionregistrationv1.MatchCondition{
		{Name: conditionDryRun, Expression: "has(request.dryRun) && request.dryRun"},
		{Name: conditionRing, Expression: fmt.Sprintf("request.name == %q", ring.Name)},
	}

	return w
}
