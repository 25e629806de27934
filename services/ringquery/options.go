package ringquery

import (
	"errors"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/ringquery/auth"
	"github.com/clusterring/clusterring/services/ringquery/transport"
)

// options are the service's own flags.
type options struct {
	transport transport.Options
	access    auth.Options
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	o.transport.AddFlags(flags)
	o.access.AddFlags(flags)
}

func (o *options) validate() error {
	return errors.Join(o.transport.Validate(), o.access.Validate(o.transport.Plaintext, o.transport.BindAddress))
}

// configure caches only the Secret and the ConfigMap of the certificate, so that the service needs no permission on others.
func (o *options) configure(common *kit.Options, m *manager.Options) {
	only := func(name string) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{common.Namespace: {
			FieldSelector: fields.OneTermEqualSelector("metadata.name", name),
		}}}
	}

	m.Cache.ByObject[&corev1.Secret{}] = only(o.transport.Secret.Name)
	m.Cache.ByObject[&corev1.ConfigMap{}] = only(o.transport.CAConfigMap)
}
