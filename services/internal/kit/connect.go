package kit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/leases"
)

// restConfig finds out how to reach the API server: --kubeconfig, else $KUBECONFIG, else the Pod's service account.
// ~/.kube/config is left alone on purpose: a service must not work on whatever cluster a person used last.
func restConfig(o *Options, userAgent string) (*rest.Config, error) {
	config, err := loadConfig(o.Kubeconfig, os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
	if err != nil {
		return nil, err
	}

	config.QPS, config.Burst, config.UserAgent = o.KubeAPIQPS, o.KubeAPIBurst, userAgent
	// Near the API server its network is cheaper than its time, as Kubernetes' own controllers see it.
	config.DisableCompression = true
	config.Wrap(leases.Bound)

	return config, nil
}

func loadConfig(flag, env string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{}

	var source string

	switch {
	case flag != "":
		rules.ExplicitPath, source = flag, "--kubeconfig "+flag
	case env != "":
		rules.Precedence, source = filepath.SplitList(env), "$KUBECONFIG "+env
	default:
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("no Kubernetes API server configured: set --kubeconfig or $KUBECONFIG, or run in a Pod")
		}

		if err != nil {
			return nil, fmt.Errorf("use the Pod's service account: %w", err)
		}

		return config, nil
	}

	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s: no such file", source)
	case clientcmd.IsEmptyConfig(err): // files of $KUBECONFIG need not exist
		return nil, fmt.Errorf("%s: no such file, or it names no cluster", source)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", source, err)
	}

	return config, nil
}

// preflightTimeout bounds the first request. It is long enough for a loaded server and short enough for a person.
const preflightTimeout = 10 * time.Second

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
	if err != nil && !apierrors.IsNotFound(err) {
		return explainAPIError(err, config.Host)
	}

	rings := func(r metav1.APIResource) bool { return r.Name == "clusterrings" }
	if err != nil || !slices.ContainsFunc(list.APIResources, rings) {
		return fmt.Errorf("the API server at %s does not serve clusterrings.%s; apply deploy/base/crd first", config.Host, gv)
	}

	return nil
}

// explainAPIError says in the operator's words why the first request failed.
func explainAPIError(err error, host string) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server at %s does not accept the credentials; check that the token or certificate in "+
			"--kubeconfig is valid: %w", host, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the API server at %s does not allow discovery; check the permissions of the service account: %w",
			host, err)
	}

	return fmt.Errorf("cannot reach the Kubernetes API server at %s: %w; check --kubeconfig and that the server runs",
		host, err)
}
