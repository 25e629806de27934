module github.com/clusterring/clusterring/services/ringquery

go 1.26.0

require (
	github.com/clusterring/clusterring/pkg v0.0.0
	github.com/clusterring/clusterring/proto v0.0.0
	github.com/clusterring/clusterring/services/internal v0.0.0
	github.com/clusterring/clusterring/tools/localplane v0.0.0
	github.com/go-logr/logr v1.4.4
	github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus v1.1.1
	github.com/grpc-ecosystem/go-grpc-middleware/v2 v2.3.4
	github.com/spf13/cobra v1.10.2
	github.com/spf13/pflag v1.0.10
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	k8s.io/api v0.37.1
	k8s.io/apimachinery v0.37.1
	k8s.io/utils v0.0.0-20260626114624-be93311217bd
	sigs.k8s.io/controller-runtime v0.25.2
)

replace (
	github.com/clusterring/clusterring/pkg => ../../pkg
	github.com/clusterring/clusterring/proto => ../../proto
	github.com/clusterring/clusterring/services/internal => ../internal
	github.com/clusterring/clusterring/tools/localplane => ../../tools/localplane
)
