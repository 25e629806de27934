module github.com/clusterring/clusterring/tools/demo

go 1.26.0
