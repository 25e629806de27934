module github.com/clusterring/clusterring/services/internal

go 1.26.0
