package kit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// preflightTimeout bounds the first request. It is long enough for a loaded server and short enough for a person.
const preflightTimeout = 10 * time.Second

// crdManifest is what to apply where the ClusterRing API is missing.
const crdManifest = "deploy/base/crd"

// preflight makes one request to find out whether the API server can be reached, lets us in, and serves ClusterRings.
// Without it, the caches would retry such mistakes for ever and a person would see a service that never gets ready.
func preflight(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.Timeout = preflightTimeout

	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client for %s: %w", config.Host, err)
	}

	gv := v1alpha1.GroupVersion.String()

	list, err := client.ServerResourcesForGroupVersionWithContext(ctx, gv)
	if err != nil {
		return explainAPIError(err, config.Host, gv)
	}

	for _, r := range list.APIResources {
		if r.Name == "clusterrings" {
			return nil
		}
	}

	return errMissingCRD(config.Host, gv)
}

func errMissingCRD(host, gv string) error {
	return fmt.Errorf("the API server at %s does not serve clusterrings.%s; apply %s first", host, gv, crdManifest)
}

// explainAPIError says in the operator's words why the first request failed.
func explainAPIError(err error, host, gv string) error {
	switch {
	case apierrors.IsNotFound(err):
		return errMissingCRD(host, gv)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server at %s does not accept the credentials; check that the token or certificate in --kubeconfig is valid: %w", host, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the API server at %s does not allow discovery; check the permissions of the service account: %w", host, err)
	}

	return fmt.Errorf("cannot reach the Kubernetes API server at %s: %w; check --kubeconfig and that the server runs", host, rootCause(err))
}

// rootCause drops the layers of net/http and net that repeat the URL and the addresses.
func rootCause(err error) error {
	var (
		urlErr  *url.Error
		opErr   *net.OpError
		errno   syscall.Errno
		timeout interface{ Timeout() bool }
	)
	if errors.As(err, &errno) {
		return errno
	}

	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("no answer within %s", preflightTimeout)
	}

	if errors.As(err, &opErr) && opErr.Err != nil {
		return opErr.Err
	}

	if errors.As(err, &urlErr) {
		return urlErr.Err
	}

	return err
}
