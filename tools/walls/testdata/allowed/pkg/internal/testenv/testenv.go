// Package testenv promises one thing.
package testenv

import _ "sigs.k8s.io/controller-runtime/pkg/envtest"
