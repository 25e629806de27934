module github.com/clusterring/clusterring/proto

go 1.26.0
