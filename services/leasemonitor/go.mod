module github.com/clusterring/clusterring/services/leasemonitor

go 1.26.0

require (
	github.com/clusterring/clusterring/pkg v0.0.0
	github.com/clusterring/clusterring/services/internal v0.0.0
	github.com/clusterring/clusterring/tools/localplane v0.0.0
	github.com/prometheus/client_golang v1.25.0
	github.com/spf13/cobra v1.10.2
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	k8s.io/api v0.37.1
	k8s.io/apimachinery v0.37.1
	k8s.io/client-go v0.37.1
	k8s.io/utils v0.0.0-20260626114624-be93311217bd
	sigs.k8s.io/controller-runtime v0.25.2
)

replace (
	github.com/clusterring/clusterring/pkg => ../../pkg
	github.com/clusterring/clusterring/services/internal => ../internal
	github.com/clusterring/clusterring/tools/localplane => ../../tools/localplane
)
