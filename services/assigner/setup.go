package assigner

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/assigner/registration"
	"github.com/clusterring/clusterring/services/assigner/rings"
	"github.com/clusterring/clusterring/services/assigner/webhook"
	"github.com/clusterring/clusterring/services/internal/ancestry"
	"github.com/clusterring/clusterring/services/internal/certs"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/shardleases"
	"github.com/clusterring/clusterring/services/internal/status"
)

// service is one run of the assigner.
type service struct {
	options
	all *pflag.FlagSet
	mux *http.ServeMux
	// source is set once there is one; the webhook's listener asks it for the certificate.
	source certs.Source
}

// configure restricts what is cached to what is needed, and sets up the webhook's listener.
func (s *service) configure(o *manager.Options) {
	ofRing, _ := labels.NewRequirement(v1alpha1.LabelClusterRing, selection.Exists, nil) // fails for invalid labels only
	o.Cache.ByObject[&admissionregistrationv1.MutatingWebhookConfiguration{}] = cache.ByObject{
		Label: labels.NewSelector().Add(*ofRing),
	}
	o.Cache.ByObject[&corev1.Secret{}] = cache.ByObject{
		Namespaces: map[string]cache.Config{s.all.Lookup("namespace").Value.String(): {
			FieldSelector: fields.OneTermEqualSelector("metadata.name", s.secret.Name),
		}},
	}

	host, port, _ := s.address() // validated
	o.WebhookServer = ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host:       host,
		Port:       port,
		WebhookMux: s.mux,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			c.MinVersion = tls.VersionTLS12
			c.NextProtos = []string{"h2", "http/1.1"}
			c.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return s.source.GetCertificate(hello) }
		}},
	})
}

func (s *service) setup(ctx context.Context, rt *kit.Runtime) error {
	mgr := rt.Manager
	target := s.target(rt.Options.Namespace)

	index := membership.NewIndex()
	store := rings.NewStore(index, admissions.Forget)

	var err error
	if s.source, err = s.certificates(rt, target); err != nil {
		return err
	}

	if err := s.source.SetupWith(mgr); err != nil {
		return err
	}

	if _, err := shardleases.Follow(rt, index); err != nil {
		return err
	}

	known, err := resources.Follow(mgr, rt.Clock, rt.Log)
	if err != nil {
		return err
	}

	keeper := &rings.Keeper{Client: mgr.GetClient(), Store: store, Resources: known}
	if err := keeper.SetupWithManager(mgr); err != nil {
		return err
	}

	r := &registration.Reconciler{
		Client: mgr.GetClient(),
		Live:   mgr.GetAPIReader(),
		Rings:  store,
		Bundle: s.source,
		Target: target,
		Status: status.Writer{Client: mgr.GetClient(), Owner: name, Clock: rt.Clock},
	}
	if err := r.SetupWithManager(mgr); err != nil {
		return err
	}

	ancestors, err := ancestorsOf(mgr, rt.Clock)
	if err != nil {
		return err
	}

	// On the mux, not by the server's Register: that would measure every call a second time.
	handler := &webhook.Handler{Rings: store, Ancestors: ancestors, Bodies: webhook.NewBodies(), Metrics: admissions, Clock: rt.Clock, Log: rt.Log}
	s.mux.Handle(v1alpha1.WebhookPathPrefix, webhook.NewAging(handler, s.connectionAge, rt.Clock))

	listening := mgr.GetWebhookServer().StartedChecker()

	rt.AddReady("rings", keeper.Ready)
	rt.AddReady("webhook", func(r *http.Request) error {
		if err := s.source.Ready(r); err != nil {
			return fmt.Errorf("no certificate: %w", err)
		}

		return listening(r) // by a handshake, which would be in vain without a certificate
	})

	return nil
}

const (
	// maxBetween is of how many objects that stand between others it is remembered whom they follow, 3 MB, and rememberFor for how long. Should
	// one get another owner, what is new goes to the old owner's shard for that long, until the rebalancer's audit finds it.
	maxBetween  = 10_000
	rememberFor = time.Minute
)

// ancestorsOf returns who finds out whom objects follow.
func ancestorsOf(mgr manager.Manager, clk clock.PassiveClock) (*ancestry.Book, error) {
	live, err := metadata.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("create a client for metadata: %w", err)
	}

	read := func(ctx context.Context, gvr schema.GroupVersionResource, name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
		return live.Resource(gvr).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	}

	return ancestry.New(ancestry.Options{Read: read, Size: maxBetween, Remember: rememberFor, Clock: clk}), nil
}

// certificates returns where the serving certificate comes from.
func (s *service) certificates(rt *kit.Runtime, target registration.Target) (certs.Source, error) {
	if s.caMode != caSecret {
		bundle := s.caBundleFile
		if s.caMode == caCertManager {
			bundle = ""
		}

		source, err := certs.NewFiles(s.certFile, s.keyFile, bundle, rt.Clock)
		if err != nil {
			return nil, fmt.Errorf("%w (--tls-cert-file, --tls-private-key-file, --ca-bundle-file)", err)
		}

		return source, nil
	}

	return &certs.Secret{
		Client: rt.Manager.GetClient(),
		Name:   types.NamespacedName{Namespace: rt.Options.Namespace, Name: s.secret.Name},
		Policy: s.policy(target),
		Clock:  rt.Clock,
	}, nil
}
