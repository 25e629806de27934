module github.com/clusterring/clusterring/services/assigner

go 1.26.0
