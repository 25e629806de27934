// Package self is what a process in a Pod can find out about itself, and how it ends itself.
package self

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"
)

// Mounted is the directory that contains the namespace of the Pod and its token.
const Mounted = "/var/run/secrets/kubernetes.io/serviceaccount"

// Host returns the name of the host, which is that of the Pod in a cluster. The error tells what to do. hostname is os.Hostname, except in tests.
func Host(hostname func() (string, error)) (string, error) {
	name, err := hostname()
	if err != nil {
		return "", fmt.Errorf("set it, the host has none: %w", err)
	}

	return name, nil
}

// Namespace returns the namespace of the Pod. The error tells what to do. mounted is [Mounted], except in tests.
func Namespace(mounted string) (string, error) {
	content, err := os.ReadFile(filepath.Join(mounted, "namespace"))
	if err != nil {
		return "", fmt.Errorf("set it, outside of a Pod it is not known: %w", err)
	}

	return string(bytes.TrimSpace(content)), nil
}

// Exit ends the process because of workers that have not stopped. It logs with klog, which writes to standard error by default.
func Exit(err error) {
	klog.Background().Error(err, "Ending the process")
	klog.Flush()
	os.Exit(1) //nolint:revive // nothing less stops a worker that ignores its context
}
