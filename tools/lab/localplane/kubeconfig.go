package localplane

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// tokenLifetime is the lifetime of service account tokens: longer than any demo runs.
const tokenLifetime = 7 * 24 * time.Hour

// Kubeconfig returns the path of the administrator's kubeconfig.
func (p *Plane) Kubeconfig() string { return p.path("kubeconfig", "admin.yaml") }

// ServiceAccountKubeconfig writes a kubeconfig with a new token of an existing service account, and returns its path. A process that uses it
// has exactly the permissions of the service account.
func (p *Plane) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(tokenLifetime / time.Second)),
	}}

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := p.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("get a token of service account %s/%s: %w", namespace, name, err)
	}

	path := p.path("kubeconfig", namespace+"."+name+".yaml")

	return path, WriteKubeconfig(path, p.Config, request.Status.Token, namespace)
}

// WriteKubeconfig writes a kubeconfig to path with the API server of the configuration, the token, and a default namespace, which may be empty.
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
