package registration

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
)

// API servers do not authenticate to webhooks. The path of a ring's webhook therefore ends with a secret, which only those know who may read webhook
// configurations. The configuration itself keeps it: the leader takes it from there, and all replicas answer only what was sent to the path of the
// ring's configuration. This needs no key that replicas share, whatever their certificates come from.
var secret = regexp.MustCompile(`^[0-9a-f]{32}$`)

var errPathsUnknown = errors.New("the webhook configurations are not known yet")

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

// secrets are the secrets of the paths of rings. It is safe for concurrent use. The zero value knows none.
type secrets struct{ known sync.Map }

// of returns the secret of a ring: that of its configuration, else the last one that was returned, else a new one. A configuration that is deleted or
// edited therefore gets the same one again.
func (s *secrets) of(ring string, have *admissionregistrationv1.MutatingWebhookConfiguration) string {
	if found, ok := strings.CutPrefix(pathOf(have), contract.WebhookPath(ring)+"/"); ok && secret.MatchString(found) {
		s.known.Store(ring, found)
		return found
	}

	random := make([]byte, 16)
	_, _ = rand.Read(random) // never fails

	known, _ := s.known.LoadOrStore(ring, hex.EncodeToString(random))
	found, _ := known.(string)

	return found
}

// forget drops the secret of a ring without a webhook.
func (s *secrets) forget(ring string) { s.known.Delete(ring) }

// Paths are the paths of the webhooks of all rings, as they are registered. It is safe for concurrent use. Create it with [Follow].
type Paths struct {
	paths  sync.Map // by name of the configuration, as string
	synced func() bool
}

// Follow returns the paths, which follow the configurations in the cache. It returns an error if the cache cannot hold them.
func Follow(ctx context.Context, c cache.Cache) (*Paths, error) {
	informer, err := c.GetInformer(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{})
	if err != nil {
		return nil, fmt.Errorf("follow webhook configurations: %w", err)
	}

	p := &Paths{}
	store := func(obj any) {
		if c, ok := obj.(*admissionregistrationv1.MutatingWebhookConfiguration); ok {
			p.paths.Store(c.Name, pathOf(c))
		}
	}

	registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    store,
		UpdateFunc: func(_, obj any) { store(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				p.paths.Delete(name)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("follow webhook configurations: %w", err)
	}

	p.synced = registered.HasSynced

	return p, nil
}

// Registered reports whether the path is that of the ring's webhook. It takes the same time for every wrong path of the same length.
func (p *Paths) Registered(ring, path string) bool {
	known, ok := p.paths.Load(contract.WebhookConfigurationName(ring))
	registered, _ := known.(string)

	return ok && subtle.ConstantTimeCompare([]byte(registered), []byte(path)) == 1
}

// Ready is a readiness check. It returns an error until all configurations are known that existed at the start.
func (p *Paths) Ready(*http.Request) error {
	if !p.synced() {
		return errPathsUnknown
	}

	return nil
}
