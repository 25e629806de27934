package kit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

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
