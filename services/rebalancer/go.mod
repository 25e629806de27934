module github.com/clusterring/clusterring/services/rebalancer

go 1.26.0
