// Package auth is a case of the tests: it imports more of an API server than decides about callers.
package auth

import (
	_ "github.com/clusterring/clusterring/services/internal/kit"
	_ "k8s.io/apiserver/pkg/authentication/token/cache"
	_ "k8s.io/apiserver/pkg/cel"
	_ "k8s.io/apiserver/plugin/pkg/authorizer/webhook"
)
