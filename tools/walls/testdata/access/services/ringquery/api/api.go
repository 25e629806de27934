// Package api is a case of the tests: it imports what access alone may.
package api

import (
	_ "k8s.io/apiserver/pkg/authentication/user"
)
