"""Problems about grids and matrices, given as lists of rows."""

from factory.problems.sources.source import problem

PROBLEMS = (
    problem(
        "count-neighbours",
        "introductory",
        """Write `neighbours(grid, row, column)` for a grid of 0 and 1 as a list of rows. Return how
        many of the up to eight cells around the given cell hold a 1. Cells outside the grid don't
        count, nor does the cell itself.""",
        """
        neighbours([[1]], 0, 0) == 0
        neighbours([[1, 1], [1, 1]], 0, 0) == 3
        neighbours([[1, 1, 1], [1, 1, 1], [1, 1, 1]], 1, 1) == 8
        neighbours([[0, 0, 0], [0, 1, 0], [0, 0, 0]], 1, 1) == 0
        neighbours([[0, 0, 0], [0, 1, 0], [0, 0, 0]], 0, 0) == 1
        neighbours([[1, 0, 1]], 0, 1) == 2
        neighbours([[1], [0], [1]], 1, 0) == 2
        neighbours([[0, 0, 1], [0, 0, 0], [1, 0, 0]], 1, 1) == 2
        neighbours([[1, 0, 0], [0, 0, 0], [0, 0, 0]], 2, 2) == 0
        """,
        """
def neighbours(grid, row, column):
    count = 0
    for r in range(max(row - 1, 0), min(row + 2, len(grid))):
        for c in range(max(column - 1, 0), min(column + 2, len(grid[0]))):
            if (r, c) != (row, column) and grid[r][c] == 1:
                count += 1
    return count
""",
        """
def neighbours(grid, row, column):
    count = 0
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            r = row + down
            c = column + right
            if down == 0 and right == 0:
                continue
            if 0 <= r < len(grid) and 0 <= c < len(grid[0]):
                count += grid[r][c]
    return count
""",
    ),
    problem(
        "rotate-grid",
        "introductory",
        """Write `turn_right(grid)` that returns a grid (a list of equally long rows) turned by 90
        degrees clockwise as a new list of lists. An empty grid stays empty.""",
        """
        turn_right([]) == []
        turn_right([[1]]) == [[1]]
        turn_right([[1, 2], [3, 4]]) == [[3, 1], [4, 2]]
        turn_right([[1, 2, 3]]) == [[1], [2], [3]]
        turn_right([[1], [2], [3]]) == [[3, 2, 1]]
        turn_right([[1, 2], [3, 4], [5, 6]]) == [[5, 3, 1], [6, 4, 2]]
        turn_right([[0, 1, 0], [0, 1, 1]]) == [[0, 0], [1, 1], [1, 0]]
        turn_right([["a", "b"], ["c", "d"]]) == [["c", "a"], ["d", "b"]]
        """,
        """
def turn_right(grid):
    if not grid:
        return []
    turned = []
    for c in range(len(grid[0])):
        line = []
        for r in range(len(grid) - 1, -1, -1):
            line.append(grid[r][c])
        turned.append(line)
    return turned
""",
        """
def turn_right(grid):
    return [list(line) for line in zip(*grid[::-1])]
""",
    ),
    problem(
        "island-count",
        "interview",
        """Write `islands(grid)` for a grid of 0 (water) and 1 (land) as a list of rows. Land cells
        that touch along a side (not only at a corner) belong to the same island. Return the number
        of islands. The grid passed in must not change.""",
        """
        islands([]) == 0
        islands([[0]]) == 0
        islands([[1]]) == 1
        islands([[1, 1], [1, 1]]) == 1
        islands([[1, 0], [0, 1]]) == 2
        islands([[1, 0, 1], [1, 0, 1], [1, 1, 1]]) == 1
        islands([[1, 0, 1], [0, 0, 0], [1, 0, 1]]) == 4
        islands([[0, 1, 0, 1, 1]]) == 2
        islands([[1], [0], [1], [1]]) == 2
        g = [[1, 1]]; islands(g); assert g == [[1, 1]]
        islands([[1, 1, 1], [1, 0, 0], [1, 1, 1]]) == 1
        islands([[0, 1], [1, 1]]) == 1
        """,
        """
def islands(grid):
    seen = set()
    count = 0
    for row in range(len(grid)):
        for column in range(len(grid[row])):
            if grid[row][column] == 0 or (row, column) in seen:
                continue
            count += 1
            todo = [(row, column)]
            while todo:
                r, c = todo.pop()
                if (r, c) in seen:
                    continue
                if not (0 <= r < len(grid) and 0 <= c < len(grid[r])):
                    continue
                if grid[r][c] == 0:
                    continue
                seen.add((r, c))
                todo.extend([(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)])
    return count
""",
    ),
    problem(
        "spiral-order",
        "interview",
        """Write `spiral(grid)` that returns the entries of a grid (a list of equally long rows) in
        the order of a spiral: along the first row to the right, down the last column, back along
        the last row, up the first column, and so on inwards.""",
        """
        spiral([]) == []
        spiral([[5]]) == [5]
        spiral([[1, 2, 3]]) == [1, 2, 3]
        spiral([[1], [2], [3]]) == [1, 2, 3]
        spiral([[1, 2], [3, 4]]) == [1, 2, 4, 3]
        spiral([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == [1, 2, 3, 6, 9, 8, 7, 4, 5]
        spiral([[1, 2, 3], [4, 5, 6]]) == [1, 2, 3, 6, 5, 4]
        spiral([[1, 2], [3, 4], [5, 6]]) == [1, 2, 4, 6, 5, 3]
        spiral([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]])[4:] == [8, 12, 11, 10, 9, 5, 6, 7]
        """,
        """
def spiral(grid):
    if not grid:
        return []
    top = 0
    bottom = len(grid) - 1
    left = 0
    right = len(grid[0]) - 1
    path = []
    while top <= bottom and left <= right:
        for c in range(left, right + 1):
            path.append(grid[top][c])
        for r in range(top + 1, bottom + 1):
            path.append(grid[r][right])
        if top < bottom:
            for c in range(right - 1, left - 1, -1):
                path.append(grid[bottom][c])
        if left < right:
            for r in range(bottom - 1, top, -1):
                path.append(grid[r][left])
        top += 1
        bottom -= 1
        left += 1
        right -= 1
    return path
""",
    ),
    problem(
        "saddle-points",
        "interview",
        """Write `saddle_points(grid)` that returns the positions (row, column), in reading order,
        of all entries that are greatest in their row and smallest in their column; equal entries
        are allowed.""",
        """
        saddle_points([]) == []
        saddle_points([[7]]) == [(0, 0)]
        saddle_points([[9, 8, 7], [5, 3, 2], [6, 6, 7]]) == [(1, 0)]
        saddle_points([[1, 2], [3, 1]]) == []
        saddle_points([[1, 1], [1, 1]]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        saddle_points([[1, 2, 3]]) == [(0, 2)]
        saddle_points([[3], [1], [2]]) == [(1, 0)]
        saddle_points([[4, 5, 4], [3, 5, 5], [1, 5, 4]]) == [(0, 1), (1, 1), (2, 1)]
        saddle_points([[1, 9], [2, 8]]) == [(1, 1)]
        """,
        """
def saddle_points(grid):
    found = []
    for r, row in enumerate(grid):
        for c, value in enumerate(row):
            column = [line[c] for line in grid]
            if value == max(row) and value == min(column):
                found.append((r, c))
    return found
""",
    ),
    problem(
        "diagonal-sums",
        "introductory",
        """Write `diagonal_difference(square)` for a square grid of numbers. Return the absolute
        difference between the sums of its two diagonals. An empty grid gives 0.""",
        """
        diagonal_difference([]) == 0
        diagonal_difference([[5]]) == 0
        diagonal_difference([[1, 2], [3, 4]]) == 0
        diagonal_difference([[1, 2], [4, 8]]) == 3
        diagonal_difference([[1, 0, 0], [0, 9, 0], [0, 0, 1]]) == 2
        diagonal_difference([[0, 0, 3], [0, 5, 0], [4, 0, 0]]) == 7
        diagonal_difference([[11, 2, 4], [4, 5, 6], [10, 8, -12]]) == 15
        diagonal_difference([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == 0
        diagonal_difference([[0, 7], [0, 0]]) == 7
        """,
        """
def diagonal_difference(square):
    size = len(square)
    down = 0
    up = 0
    for i in range(size):
        down += square[i][i]
        up += square[i][size - 1 - i]
    return abs(down - up)
""",
    ),
    problem(
        "shortest-path-grid",
        "interview",
        """Write `shortest_path(grid)` for a list of equally long strings in which "#" is a wall and
        "." is free. Return the smallest number of steps (up, down, left, right) from the top left
        to the bottom right cell, or -1 if there is no way. The two corners may be walls, and then
        there is no way. The grid has at least one cell.""",
        """
        shortest_path(["."]) == 0
        shortest_path(["#"]) == -1
        shortest_path(["..", ".."]) == 2
        shortest_path([".#", "#."]) == -1
        shortest_path(["...", "##.", "..."]) == 4
        shortest_path(["...", ".##", "..."]) == 4
        shortest_path([".....", "####.", ".....", ".####", "....."]) == 16
        shortest_path(["..", ".#"]) == -1
        shortest_path(["#.", ".."]) == -1
        shortest_path(["...."]) == 3
        shortest_path([".", "."]) == 1
        """,
        """
def shortest_path(grid):
    rows = len(grid)
    columns = len(grid[0])
    if grid[0][0] == "#" or grid[rows - 1][columns - 1] == "#":
        return -1
    distance = {(0, 0): 0}
    queue = [(0, 0)]
    for r, c in queue:
        if (r, c) == (rows - 1, columns - 1):
            return distance[(r, c)]
        for nr, nc in [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]:
            if 0 <= nr < rows and 0 <= nc < columns and grid[nr][nc] == ".":
                if (nr, nc) not in distance:
                    distance[(nr, nc)] = distance[(r, c)] + 1
                    queue.append((nr, nc))
    return -1
""",
    ),
    problem(
        "row-winner",
        "introductory",
        """Write `line_winner(board)` for a board of three rows with three characters each: "x", "o"
        or " ". Return the character that fills a whole row, column or diagonal, or " " if there is
        none. At most one of the two has such a line.""",
        """
        line_winner(["   ", "   ", "   "]) == " "
        line_winner(["xxx", "oo ", "   "]) == "x"
        line_winner(["oo ", "xxx", "   "]) == "x"
        line_winner(["   ", "xx ", "ooo"]) == "o"
        line_winner(["xo ", "xo ", "x  "]) == "x"
        line_winner(["xox", " o ", "xo "]) == "o"
        line_winner(["oox", "  x", "  x"]) == "x"
        line_winner(["xo ", "ox ", "  x"]) == "x"
        line_winner(["xxo", " o ", "o  "]) == "o"
        line_winner(["xox", "xox", "oxo"]) == " "
        """,
        """
def line_winner(board):
    lines = list(board)
    for c in range(3):
        lines.append(board[0][c] + board[1][c] + board[2][c])
    lines.append(board[0][0] + board[1][1] + board[2][2])
    lines.append(board[0][2] + board[1][1] + board[2][0])
    for line in lines:
        if line == "xxx" or line == "ooo":
            return line[0]
    return " "
""",
    ),
    problem(
        "matrix-product",
        "introductory",
        """Write `multiply(a, b)` that returns the product of two matrices given as lists of rows,
        or None if the rows of `a` are not as long as `b` has rows. Both matrices have at least one
        row and one column.""",
        """
        multiply([[2]], [[3]]) == [[6]]
        multiply([[1, 2]], [[3], [4]]) == [[11]]
        multiply([[1], [2]], [[3, 4]]) == [[3, 4], [6, 8]]
        multiply([[1, 2], [3, 4]], [[0, 1], [1, 0]]) == [[2, 1], [4, 3]]
        multiply([[1, 2]], [[1, 2]]) is None
        multiply([[1, 0], [0, 1]], [[5, 6, 7], [8, 9, 10]]) == [[5, 6, 7], [8, 9, 10]]
        multiply([[1]], [[1], [2]]) is None
        multiply([[1, 1, 1]], [[1], [2], [3]]) == [[6]]
        """,
        """
def multiply(a, b):
    if len(a[0]) != len(b):
        return None
    product = []
    for i in range(len(a)):
        line = []
        for j in range(len(b[0])):
            total = 0
            for k in range(len(b)):
                total += a[i][k] * b[k][j]
            line.append(total)
        product.append(line)
    return product
""",
    ),
    problem(
        "visible-towers",
        "interview",
        """Write `visible(grid)` for a grid of tower heights. A tower can be seen from outside if,
        in at least one of the four directions, all towers between it and the border are lower than
        it is. Return the number of towers that can be seen.""",
        """
        visible([]) == 0
        visible([[1]]) == 1
        visible([[1, 1], [1, 1]]) == 4
        visible([[1, 1, 1], [1, 1, 1], [1, 1, 1]]) == 8
        visible([[1, 1, 1], [1, 2, 1], [1, 1, 1]]) == 9
        visible([[9, 9, 9], [9, 5, 9], [9, 9, 9]]) == 8
        visible([[9, 9, 9], [4, 5, 9], [9, 9, 9]]) == 9
        visible([[9, 9, 9], [9, 5, 4], [9, 9, 9]]) == 9
        visible([[9, 4, 9], [9, 5, 9], [9, 9, 9]]) == 9
        visible([[9, 9, 9], [9, 5, 9], [9, 4, 9]]) == 9
        visible([[9, 9, 9], [5, 5, 9], [9, 9, 9]]) == 8
        visible([[9, 9, 9, 9], [3, 4, 4, 9], [9, 9, 9, 9]]) == 11
        """,
        """
def visible(grid):
    count = 0
    for r in range(len(grid)):
        for c in range(len(grid[r])):
            height = grid[r][c]
            left = grid[r][:c]
            right = grid[r][c + 1:]
            up = [grid[k][c] for k in range(r)]
            down = [grid[k][c] for k in range(r + 1, len(grid))]
            for side in (left, right, up, down):
                if all(other < height for other in side):
                    count += 1
                    break
    return count
""",
    ),
    problem(
        "falling-stones",
        "introductory",
        """Write `let_fall(grid)` for a list of equally long strings in which "o" is a stone and "."
        is free. In each column all stones fall down as far as they can. Return the new list of
        strings.""",
        """
        let_fall([]) == []
        let_fall(["o"]) == ["o"]
        let_fall(["o", "."]) == [".", "o"]
        let_fall([".", "o"]) == [".", "o"]
        let_fall(["oo", "..", ".o"]) == ["..", ".o", "oo"]
        let_fall(["o.o", "..."]) == ["...", "o.o"]
        let_fall(["o", ".", "o", "."]) == [".", ".", "o", "o"]
        let_fall(["o..", ".o.", "..o"]) == ["...", "...", "ooo"]
        let_fall([".."]) == [".."]
        """,
        """
def let_fall(grid):
    height = len(grid)
    fallen = [""] * height
    if height == 0:
        return fallen
    for c in range(len(grid[0])):
        stones = 0
        for line in grid:
            if line[c] == "o":
                stones += 1
        for r in range(height):
            if r >= height - stones:
                fallen[r] += "o"
            else:
                fallen[r] += "."
    return fallen
""",
    ),
)
