// Package localplane promises one thing.
package localplane

import (
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
)
