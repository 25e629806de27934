package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

const (
	// caConfigMap contains the CA certificates of the Service, in the same namespace. Unlike the Secret with the server's key, all
	// clients can read it.
	caConfigMap = "ringquery-ca"
	caKey       = "ca.crt"
)

// clientTLS returns the TLS configuration. Unless a flag disables it, the server's certificate is verified: by default for the
// host to which gRPC connects. A server that requests a certificate gets that of the kubeconfig's user, if there is one.
func (o *Options) clientTLS(config *rest.Config, roots *x509.CertPool) (*tls.Config, error) {
	secure := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         o.ServerName,
		RootCAs:            roots,
		InsecureSkipVerify: o.Insecure,
	}
	if config == nil {
		return secure, nil
	}

	user, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig's certificate: %w", err)
	}

	if user != nil {
		secure.Certificates, secure.GetClientCertificate = user.Certificates, user.GetClientCertificate
	}

	return secure, nil
}

// fileRoots returns the CA certificates in --ca-file. Nil: those of this machine.
func (o *Options) fileRoots() (*x509.CertPool, error) {
	if o.CAFile == "" {
		return nil, nil // nil stands for the CA certificates of this machine in crypto/tls
	}

	data, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, failure.New("name a PEM file that you can read", "--ca-file: %w", err)
	}

	return pool(data, "--ca-file "+o.CAFile)
}

// clusterRoots returns the CA certificates that the cluster publishes for the Service. If they do not exist or may not be read, it returns
// those of this machine: the server is always verified. note describes the result, to explain a later failure.
func clusterRoots(ctx context.Context, client typedcorev1.ConfigMapsGetter, namespace string) (roots *x509.CertPool, note string, err error) {
	found, err := client.ConfigMaps(namespace).Get(ctx, caConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Sprintf("verified with the CA certificates of this machine, because %v", err), nil
	}

	where := fmt.Sprintf("ConfigMap %s/%s, key %s", namespace, caConfigMap, caKey)
	roots, err = pool([]byte(found.Data[caKey]), where)

	return roots, "verified with " + where, err
}

func pool(data []byte, where string) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, failure.New("put PEM certificates into it, or use another with --ca-file", "%s holds no certificate", where)
	}

	return roots, nil
}
