package system

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// writerName is the ServiceAccount that objects are written as, and the binding of its rights.
const writerName = "load-writer"

// As returns a configuration with the rights of a ServiceAccount of the control plane of this machine, which has to exist, and its
// name as that of the client.
func (s *System) As(ctx context.Context, namespace, name string) (*rest.Config, error) {
	s.accounts.Lock() // the file of an account is written each time
	defer s.accounts.Unlock()
	kubeconfig, err := s.plane.ServiceAccountKubeconfig(ctx, namespace, name)
	if err != nil {
		return nil, fmt.Errorf("act as ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("act as ServiceAccount %s/%s: %w", namespace, name, err)
	}
	config.UserAgent = name
	return config, nil
}

// becomeWriter makes the ServiceAccount that objects are written as.
func (s *System) becomeWriter(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: writerName}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: writerName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}
	if err := errors.Join(s.Client.Create(ctx, account), s.Client.Create(ctx, binding)); err != nil {
		return fmt.Errorf("make the ServiceAccount that writes objects: %w", err)
	}
	var err error
	s.Writer, err = s.As(ctx, account.Namespace, account.Name)
	return err
}

// Calm has the API server of this machine collect its garbage. That costs it as much as hundreds of writes, again and again; what
// is measured right after it has as much until the next time as what it is compared with. A cluster is left alone.
func (s *System) Calm(ctx context.Context) error {
	if !s.Local() {
		return nil
	}
	if _, err := rawGet(ctx, s.Writer, "/debug/pprof/heap?gc=1"); err != nil {
		return fmt.Errorf("have the API server collect its garbage: %w", err)
	}
	return nil
}
