package localplane

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
)

// tokenLifetime is the lifetime of service account tokens: longer than any demo runs.
const tokenLifetime = 7 * 24 * time.Hour

// Kubeconfig returns the path of the administrator's kubeconfig.
func (p *Plane) Kubeconfig() string { return p.path("kubeconfig", "admin.yaml") }

// ServiceAccountKubeconfig writes a kubeconfig with a new token of an existing service account, and returns its path. A
// process that uses it has exactly the permissions of the service account.
func (p *Plane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	return p.tokenKubeconfig(ctx, namespace, name, nil)
}

// PodKubeconfig writes a kubeconfig as the kubelet would give it to a Pod of an existing service account, and returns
// its path: its token is bound to the Pod. The Pod is created if it does not exist. It has no node, and nothing runs
// it.
func (p *Plane) PodKubeconfig(ctx context.Context, namespace, account, name string) (string, error) {
	pod := kubelettest.Pod(namespace, name)
	pod.Spec.ServiceAccountName = account

	err := p.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		err = p.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
	}

	if err != nil {
		return "", fmt.Errorf("create Pod %s/%s: %w", namespace, name, err)
	}

	return p.tokenKubeconfig(ctx, namespace, account, pod)
}

// tokenKubeconfig writes a kubeconfig with a new token of an existing service account. Unless pod is nil, the token is
// bound to it.
func (p *Plane) tokenKubeconfig(ctx context.Context, namespace, name string, pod *corev1.Pod) (string, error) {
	var spec authenticationv1.TokenRequestSpec

	path := p.path("kubeconfig", namespace+"."+name+".yaml")

	if pod != nil {
		spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod",
			Name: pod.Name, UID: pod.UID}
		path = p.path("kubeconfig", namespace+"."+name+"."+pod.Name+".yaml")
	}

	token, err := p.token(ctx, namespace, name, spec)
	if err != nil {
		return "", err
	}

	return path, WriteKubeconfig(path, p.Config, token, namespace)
}

// Token returns a new token of an existing service account that only the given audience accepts.
func (p *Plane) Token(ctx context.Context, namespace, name, audience string) (string, error) {
	return p.token(ctx, namespace, name, authenticationv1.TokenRequestSpec{Audiences: []string{audience}})
}

func (p *Plane) token(ctx context.Context, namespace, name string,
	spec authenticationv1.TokenRequestSpec) (string, error) {
	spec.ExpirationSeconds = ptr.To(int64(tokenLifetime / time.Second))
	request := &authenticationv1.TokenRequest{Spec: spec}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}

	if err := p.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("get a token of service account %s/%s: %w", namespace, name, err)
	}

	return request.Status.Token, nil
}

// WriteKubeconfig writes a kubeconfig to path with the API server of the configuration, the token, and a default
// namespace, which may be empty.
func WriteKubeconfig(path string, server *rest.Config, token, namespace string) error {
	const only = "localplane"

	config := clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{only: {
			Server: server.Host, TLSServerName: server.ServerName, InsecureSkipTLSVerify: server.Insecure,
			CertificateAuthority: server.CAFile, CertificateAuthorityData: server.CAData,
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{only: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{only: {Cluster: only, AuthInfo: only, Namespace: namespace}},
		CurrentContext: only,
	}
	if err := clientcmd.WriteToFile(config, path); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}

	return nil
}
