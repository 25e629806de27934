package system

import (
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"

	certutil "k8s.io/client-go/util/cert"
)

// certificate is where a server's certificate is.
type certificate struct {
	// cert and key are what the server needs, ca is what its clients need. All are PEM files.
	cert, key, ca string
}

// newCertificate makes an authority and a certificate for servers on 127.0.0.1, in a new directory.
func newCertificate(dir string) (certificate, error) {
	c := certificate{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"), ca: filepath.Join(dir, "ca.crt")}
	loopback := net.IPv4(127, 0, 0, 1)
	chain, key, err := certutil.GenerateSelfSignedCertKey(loopback.String(), []net.IP{loopback}, []string{"localhost"})
	if err != nil {
		return c, fmt.Errorf("make a certificate: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return c, fmt.Errorf("make the directory of certificates: %w", err)
	}
	_, authority := pem.Decode(chain) // what follows the certificate of the server
	for path, content := range map[string][]byte{c.cert: chain, c.key: key, c.ca: authority} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return c, fmt.Errorf("write a certificate: %w", err)
		}
	}
	return c, nil
}
